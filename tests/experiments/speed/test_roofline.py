"""The roofline of a judge on a GPU, worked out by hand and by what must hold of any."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoj_reward.capacity.memory import ModelShape, find_shape, known_shapes
from autoj_reward.errors import AutojError, ConfigError, ModelError
from autoj_reward.models.device import GPUS, Device
from experiments.speed.roofline import (
    PEAKS,
    JudgementTokens,
    Lengths,
    Machine,
    Roofline,
    Serving,
    count_read_bytes,
    find_machine,
    fitting,
    judgement_tokens,
    roofline,
)

H200 = find_machine(GPUS["h200"])
LLAMA = find_shape("llama-2-13b")

# A model and a device whose figures can be worked out on paper: no feed-forward block but one wide
# element, and a device of 1 operation and 1 byte a nanosecond.
TINY = ModelShape("tiny", 1, 4, 1, 2, 1, 2, 10, tied=True)
NANO = Machine(tflops={"bf16": 0.001}, bandwidth_gbs=1.0, memory_gib=1.0)


def test_a_judgement_worked_out_by_hand() -> None:
    work = JudgementTokens(prefix=2, own=4, output=4, sharers=2)
    alone = Serving(sharing=False, max_sequences=2)
    rate = roofline(TINY, NANO, alone, work)
    # 6 tokens: 2 x 68 each, attention 4 x 2 x 2 = 16 for each of 21 pairs, and the head once.
    prefill = 6 * 136 + 21 * 16 + 80
    # A step of two sequences at a context of 8 reads (68 + 40) x 2 bytes of weights for both, and
    # 8 x 8 of KV for each; it computes 136 + 80 + 128 for each, more than it reads.
    step = max(136 + 80 + 8 * 16, 216 / 2 + 64)
    assert step == 344
    assert rate.seconds == {
        "compute in prefill": pytest.approx(prefill * 1e-9),
        "compute in decoding": pytest.approx(3 * step * 1e-9),
    }
    assert rate.per_minute == pytest.approx(60 / ((prefill + 3 * step) * 1e-9))
    assert rate.bound == "compute in prefill"
    # Shared by two, a request computes 5 tokens, and the 3 pairs of the prefix are computed once.
    shared = roofline(TINY, NANO, Serving(max_sequences=2), work)
    assert shared.seconds["compute in prefill"] == pytest.approx((5 * 136 + 19.5 * 16 + 80) * 1e-9)
    # Ten times the operations a second: now reading binds.
    fast = NANO.model_copy(update={"tflops": {"bf16": 0.01}})
    reading = roofline(TINY, fast, alone, work)
    assert reading.seconds["reading weights"] == pytest.approx(3 * 108e-9)
    assert reading.seconds["reading KV"] == pytest.approx(3 * 64e-9)
    assert reading.bound == "weights bandwidth"


def test_how_many_sequences_fit() -> None:
    serving = Serving(kv_cache_gib=8 * 100 / 2**30, sharing=False)  # 100 tokens
    work = JudgementTokens(prefix=6, own=8, output=4, sharers=3)
    assert fitting(TINY, NANO, serving, work) == 6  # 6 x (6 + 8 + 2)
    shared = serving.model_copy(update={"sharing": True})
    assert fitting(TINY, NANO, shared, work) == 8  # 8 x (8 + 2) + 6 x 8 / 3
    lonely = JudgementTokens(prefix=6, own=8, output=4, sharers=100)
    assert fitting(TINY, NANO, shared, lonely) == 9  # 9 x (8 + 2) + 6: the prefix once, not 9 / 100


tokens = st.integers(1, 2000)
gpus = st.sampled_from(sorted(GPUS))
lengths = st.builds(
    Lengths,
    template=tokens,
    query=tokens,
    response=tokens,
    closing=tokens,
    critique=st.integers(0, 2000),
    candidates=st.integers(1, 64),
)
servings = st.builds(
    Serving,
    weights=st.sampled_from(["bf16", "fp8"]),
    kv=st.sampled_from(["bf16", "fp8"]),
    sharing=st.booleans(),
    max_sequences=st.none() | st.integers(1, 1024),
)


def compute_rate(
    shape: ModelShape, gpu: str, serving: Serving, text_lengths: Lengths, devices: int = 1
) -> float:
    """Return judgements a minute; 0 if nothing fits."""
    several = serving.model_copy(update={"tensor_parallel": devices})
    try:
        machine = find_machine(GPUS[gpu])
        return roofline(shape, machine, several, judgement_tokens(text_lengths)).per_minute
    except ModelError:
        return 0.0


@given(st.sampled_from(sorted(known_shapes())), gpus, servings, lengths)
def test_more_gpus_are_never_slower(
    name: str, gpu: str, serving: Serving, text_lengths: Lengths
) -> None:
    shape = find_shape(name)
    counts = [n for n in (1, 2, 4, 8) if shape.heads % n == 0]
    counts = [n for n in counts if shape.kv_heads % n == 0 or n % shape.kv_heads == 0]
    rates = [compute_rate(shape, gpu, serving, text_lengths, n) for n in counts]
    assert rates == sorted(rates)


@given(gpus, servings, lengths, st.integers(0, 2000))
def test_a_shorter_critique_is_never_slower(
    gpu: str, serving: Serving, text_lengths: Lengths, other: int
) -> None:
    short, long = (
        compute_rate(LLAMA, gpu, serving, text_lengths.model_copy(update={"critique": n}))
        for n in sorted((text_lengths.critique, other))
    )
    assert short >= long


@given(gpus, servings, lengths)
def test_sharing_and_fp8_kv_are_never_slower(
    gpu: str, serving: Serving, text_lengths: Lengths
) -> None:
    plain = serving.model_copy(update={"sharing": False, "kv": "bf16"})
    for change in ({"sharing": True}, {"kv": "fp8"}):
        changed = plain.model_copy(update=change)
        assert compute_rate(LLAMA, gpu, changed, text_lengths) >= compute_rate(
            LLAMA, gpu, plain, text_lengths
        )


def compute(gpu: str = "h200", model: str = "llama-2-13b", **settings: Any) -> Roofline:
    """Return the roofline of a judge with critiques of the default length."""
    serving = Serving.model_validate(settings)
    shape, machine = find_shape(model), find_machine(GPUS[gpu])
    return roofline(shape, machine, serving, judgement_tokens(Lengths()))


def test_a_rating_alone_is_one_prefill() -> None:
    alone = roofline(LLAMA, H200, Serving(), judgement_tokens(Lengths(critique=0)))
    assert alone.bound == "compute in prefill"
    assert alone.per_minute > 5 * compute().per_minute


def test_a_given_kv_cache_must_fit_beside_the_weights() -> None:
    # 24.2 GiB of weights and 2 of KV; the share of the memory does not count, as in vLLM.
    cut = {"memory_share": 0.1, "kv_cache_gib": 2.0}
    work = judgement_tokens(Lengths())
    for memory, devices in ((26.5, 1), (13.25, 2)):
        machine = H200.model_copy(update={"memory_gib": memory})
        serving = Serving(**cut, tensor_parallel=devices)
        assert fitting(LLAMA, machine, serving, work) == 5
        tight = machine.model_copy(update={"memory_gib": memory - 0.5 / devices})
        with pytest.raises(
            ModelError, match=r"kv_cache_gib 2 more, of 26\.0 GiB: lower kv_cache_gib, use"
        ):
            fitting(LLAMA, tight, serving, work)


def test_a_step_reads_blocks_and_head_and_fp8_halves_the_blocks_alone() -> None:
    assert count_read_bytes(LLAMA, "bf16") == 2 * (LLAMA.blocks + LLAMA.head)
    assert count_read_bytes(LLAMA, "fp8") == LLAMA.blocks + 2 * LLAMA.head


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "does not fit": ({"gpu": "rtx-4090"}, "does not fit: its weights take 24.2 GiB.*fp8 weights"),
    "fp8 does not fit": (
        {"gpu": "rtx-4090", "model": "qwen2.5-32b", "weights": "fp8"},
        r"does not fit: .*in fp8, .*use more devices \(tensor_parallel is 1\) or a device",
    ),
    "KV cache does not fit": (
        {"gpu": "rtx-4090", "kv_cache_gib": 2},
        "24.2 GiB in bf16, and kv_cache_gib 2 more, of 24.0 GiB: use more devices",
    ),
    "KV cache too small": ({"kv_cache_gib": 0.1}, "0.1 GiB does not hold .*: raise kv_cache_gib"),
    "heads": ({"tensor_parallel": 3}, "3 does not divide the 40 attention"),
    "no float32 peak": ({"weights": "float32"}, "no peak in float32.*set weights and kv to bf16"),
}


@pytest.mark.parametrize(("settings", "message"), BAD.values(), ids=BAD)
def test_what_has_no_roofline_is_explained(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(AutojError, match=message):
        compute(**settings)


def test_a_device_without_fp8_units_computes_in_bf16() -> None:
    both = {"bf16": 312.0, "fp8": 312.0}
    machine = find_machine(GPUS["a100-80"])
    fp8, work = Serving(weights="fp8"), judgement_tokens(Lengths())
    same = machine.model_copy(update={"tflops": both})
    assert roofline(LLAMA, machine, fp8, work) == roofline(LLAMA, same, fp8, work)


def test_gpus_are_found_by_the_name_that_they_report() -> None:
    assert set(PEAKS) == set(GPUS)
    found = find_machine(Device("cuda", 80.0, (9, 0), "NVIDIA H200"))
    assert found == H200 and found.memory_gib == GPUS["h200"].memory_gib
    with pytest.raises(ConfigError, match="'Tesla T4'"):
        find_machine(Device("cuda", 15.0, (7, 5), "Tesla T4"))
