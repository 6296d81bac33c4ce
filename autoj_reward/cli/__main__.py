"""Entry point of `python -m autoj_reward.cli`, which is the `autoj` command."""

import sys

from autoj_reward.cli.main import main

sys.exit(main())
