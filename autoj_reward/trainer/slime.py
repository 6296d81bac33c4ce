"""slime: `--custom-rm-path autoj_reward.trainer.slime.custom_rm`, alone or with `--group-rm`.

Set AUTOJ_REWARD to the YAML file of a reward config (a `RewardConfig`). Name a running service in
it, since eval and rollout may be several processes. The other way is a running service's `POST
/reward`: `--rm-type remote_rm --rm-url http://RUN:TOKEN@127.0.0.1:8300/reward`.
"""

from __future__ import annotations

from typing import Any

from autoj_reward.trainer.rows import reward_model, row_rewards


async def custom_rm(args: Any, samples: Any, **_: Any) -> float | list[float]:
    """Return the reward of one slime sample, or with --group-rm those of a list, in order.

    The judge shows the sample's label as the reference and its metadata as other context. Failed
    judgements get the configured fallback. Raises BudgetExceeded when too many have failed, and
    ConfigError for a single sample if the config needs its group; slime ends the run with either.
    """
    batch = samples if isinstance(samples, list) else [samples]
    rows = [(s.prompt, s.response, _read_row(s)) for s in batch]
    numbers = await row_rewards(reward_model(), rows)
    return numbers if isinstance(samples, list) else numbers[0]


def _read_row(sample: Any) -> dict[str, Any]:
    return {**(getattr(sample, "metadata", None) or {}), "label": sample.label}
