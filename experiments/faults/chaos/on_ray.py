"""`autoj serve` whose scripted judge is on replicas of Ray, as a model is.

python -m experiments.faults.chaos.on_ray CONFIG
"""

from __future__ import annotations

import sys

from autoj_reward.config import EngineConfig
from autoj_reward.edge.service import main

if __name__ in ("__main__", "__mp_main__"):  # here and in the edges that it starts
    EngineConfig.on_replicas = True  # type: ignore[method-assign,assignment]

if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
