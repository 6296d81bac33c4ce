"""`autoj plan`: judgements a minute at most, devices for a load, and their cost."""

from __future__ import annotations

import argparse
from typing import Any

from autoj_reward.cli.flags import Flag, command, flag

PRECISIONS = ("float32", "bf16", "fp8")
OPTIONS: dict[str, tuple[type, str, str]] = {
    "model": (str, "NAME", "a model known by name, or a folder with config.json (llama-2-13b)"),
    "tflops": (float, "T", "dense bf16 peak; float32 with float32 weights (gpu custom or cpu)"),
    "tflops-fp8": (float, "T", "dense fp8 peak (gpu custom; without it fp8 computes in bf16)"),
    "bandwidth": (float, "GB/S", "memory bandwidth (gpu custom or cpu)"),
    "memory": (float, "GIB", "memory of a device (gpu custom; cpu: this machine's)"),
    "template": (int, "TOKENS", "judge's template before the response (40)"),
    "query": (int, "TOKENS", "mean length of a query (115)"),
    "response": (int, "TOKENS", "mean length of a response (235)"),
    "closing": (int, "TOKENS", "judge's template after the response (60)"),
    "critique": (int, "TOKENS", "mean length of a critique (330); 0 for a rating alone"),
    "candidates": (int, "N", "responses a query (32)"),
    "tensor-parallel": (int, "N", "devices an engine (1)"),
    "memory-share": (float, "SHARE", "of a device's memory for weights and KV cache (0.9)"),
    "kv-cache-gib": (float, "GIB", "KV cache of an engine, in place of what memory-share leaves"),
    "max-sequences": (int, "N", "most sequences at once (no limit but memory)"),
    "efficiency": (float, "SHARE", "share of peak that is reached (1: the roofline)"),
    "price": (float, "PRICE", "of a device-hour, in your currency: prints the cost"),
}


def _key(name: str, **options: Any) -> Flag:
    """A key of PlanConfig, whose default and range it has."""
    return flag(f"--{name}", default=argparse.SUPPRESS, **options)


@command(
    _key("gpu", required=True, metavar="NAME", help="a GPU of the table, custom, or cpu"),
    *(
        _key(name, type=kind, metavar=metavar, help=text)
        for name, (kind, metavar, text) in OPTIONS.items()
    ),
    _key("weights", choices=PRECISIONS, help="precision of the weights (bf16)"),
    _key("kv", choices=PRECISIONS, help="precision of the KV cache (bf16)"),
    _key(
        "target",
        type=float,
        metavar="N",
        dest="wanted",
        help="judgements a minute wanted: prints the devices they take",
    ),
    _key("no-sharing", action="store_false", dest="sharing", help="no prefix cache"),
    _key("measure", action="store_true", help="time a product and a copy here (gpu cpu)"),
    _key("json", action="store_true", dest="as_json", help="print JSON in place of tables"),
)
def plan(**keys: Any) -> int:
    """Print the plan. Raises ConfigError or ModelError for what cannot be planned."""
    import json

    from autoj_reward.capacity.plan import PlanConfig, make_plan, render
    from autoj_reward.config import check

    config = check(PlanConfig, keys, "command line")
    found = make_plan(config)
    print(json.dumps(found, indent=2) if config.as_json else render(found, config))
    return 0
