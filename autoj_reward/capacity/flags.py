"""The flags of `autoj plan`. Their defaults and ranges are those of PlanConfig."""

from __future__ import annotations

import argparse
from typing import Any

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
    "critique": (int, "TOKENS", "mean length of a critique (330)"),
    "candidates": (int, "N", "responses a query (32)"),
    "tensor-parallel": (int, "N", "devices an engine (1)"),
    "memory-share": (float, "SHARE", "of a device's memory for weights and KV cache (0.9)"),
    "kv-cache-gib": (float, "GIB", "KV cache of an engine, in place of what memory-share leaves"),
    "max-sequences": (int, "N", "most sequences at once (no limit but memory)"),
    "efficiency": (float, "SHARE", "share of peak that is reached (1: the roofline)"),
    "price": (float, "PRICE", "of a device-hour, in your currency: prints the cost"),
}


def _flag(name: str, **options: Any) -> tuple[str, dict[str, Any]]:
    return f"--{name}", {"default": argparse.SUPPRESS, **options}


FLAGS = (
    _flag("gpu", required=True, metavar="NAME", help="a GPU of the table, custom, or cpu"),
    *(
        _flag(name, type=kind, metavar=metavar, help=text)
        for name, (kind, metavar, text) in OPTIONS.items()
    ),
    _flag("weights", choices=PRECISIONS, help="precision of the weights (bf16)"),
    _flag("kv", choices=PRECISIONS, help="precision of the KV cache (bf16)"),
    _flag(
        "target",
        type=float,
        metavar="N",
        dest="wanted",
        help="judgements a minute wanted: prints the devices they take",
    ),
    _flag("no-sharing", action="store_false", dest="sharing", help="no prefix cache"),
    _flag("measure", action="store_true", help="time a product and a copy here (gpu cpu)"),
    _flag("json", action="store_true", dest="as_json", help="print JSON in place of tables"),
)
