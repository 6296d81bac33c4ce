from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoj_reward.capacity.memory import MODEL_TYPES, ModelShape, find_shape, known_shapes, shape_of
from autoj_reward.capacity.plan import PlanConfig, make_plan
from autoj_reward.capacity.roofline import (
    JudgementTokens,
    Lengths,
    Machine,
    Serving,
    find_gpu_by_driver_name,
    fitting,
    judgement_tokens,
    known_gpus,
    measure_machine,
    roofline,
)
from autoj_reward.cli.inspection import plan
from autoj_reward.config import check
from autoj_reward.errors import AutojError, ConfigError, ModelError

H200 = known_gpus()["h200"]
LLAMA = find_shape("llama-2-13b")

# A model and a device whose figures can be worked out on paper: no feed-forward block but one wide
# element, and a device of 1 operation and 1 byte a nanosecond.
TINY = ModelShape("tiny", 1, 4, 1, 2, 1, 2, 10, tied=True)
NANO = Machine(tflops={"bf16": 0.001}, bandwidth_gbs=1.0, memory_gib=1.0)


def test_a_judgement_worked_out_by_hand() -> None:
    # Blocks: queries and output 2 x 4 x 4, keys and values 2 x 4 x 2, gated 3 x 4 x 1, norms 2 x 4.
    assert TINY.blocks == 32 + 16 + 12 + 8 == 68
    assert TINY.head == 40 and TINY.parameters == 68 + 4 + 40
    assert TINY.kv_bytes("bf16") == 2 * 1 * 1 * 2 * 2 == 8
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


PUBLISHED = {
    # Elements of all tensors, as the model pages of the checkpoints' safetensors files count them.
    "llama-2-13b": 13_015_864_320,
    "llama-2-7b": 6_738_415_616,
    "llama-3-8b": 8_030_261_248,
    "mistral-7b": 7_241_732_096,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-32b": 32_763_876_352,
    "smollm2-135m": 134_515_008,
    "yi-6b": 6_061_035_520,
}


def test_every_shape_has_a_published_count() -> None:
    assert {shape.name for shape in known_shapes().values()} == set(PUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_published(name: str) -> None:
    assert find_shape(name).parameters == pytest.approx(PUBLISHED[name], rel=0.005)


@pytest.mark.parametrize("kind", MODEL_TYPES)
def test_parameters_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    """Read the `config.json` of each type's default model."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(kind)
    config.save_pretrained(tmp_path)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert find_shape(str(tmp_path)).parameters == pytest.approx(model.num_parameters(), rel=1e-3)


def test_an_output_head_is_tied_where_the_config_is_silent_and_the_type_ties_it() -> None:
    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "vocab_size": 9}
    heads = {"num_attention_heads": 2}
    tied = {k: shape_of(sizes | heads | {"model_type": k}, k).tied for k in ("gemma", "llama")}
    assert tied == {"gemma": True, "llama": False}


def test_fp8_leaves_head_and_embedding() -> None:
    rest = LLAMA.parameters - LLAMA.blocks
    assert LLAMA.weight_bytes("fp8") == LLAMA.blocks + 2 * rest
    assert LLAMA.weight_bytes("bf16") == 2 * LLAMA.parameters
    assert LLAMA.weight_bytes("bf16") - LLAMA.read_bytes("bf16") == pytest.approx(
        2 * LLAMA.head, rel=1e-4
    )


def test_the_default_judge_has_the_shape_in_the_table(smollm2: Any) -> None:
    from autoj_reward.models.built_in import build_model

    there = find_shape(str(build_model("smollm2-135m-instruct")))
    table = find_shape("default")
    assert there.parameters == table.parameters
    assert there.kv_bytes("bf16") == table.kv_bytes("bf16")


tokens = st.integers(1, 2000)
gpus = st.sampled_from(sorted(known_gpus()))
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
        return roofline(
            shape, known_gpus()[gpu], several, judgement_tokens(text_lengths)
        ).per_minute
    except ModelError:
        return 0.0


@given(st.sampled_from(sorted(PUBLISHED)), gpus, servings, lengths)
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


def make_config(**flags: Any) -> PlanConfig:
    return check(PlanConfig, {"gpu": "h200"} | flags, "command line")


def test_devices_and_cost_of_a_target() -> None:
    rate = make_plan(make_config(wanted=5000, price=3.0, tensor_parallel=2))["rate"]
    pair = 2 * rate["per_minute_a_device"]
    assert rate["devices"] % 2 == 0
    assert (rate["devices"] / 2 - 1) * pair < 5000 <= rate["devices"] / 2 * pair
    assert rate["cost_a_thousand"] == pytest.approx(1000 / pair / 60 * 2 * 3.0)
    alone = make_plan(make_config())["rate"]
    assert (alone["devices"], alone["cost_a_thousand"]) == (None, None)


def test_efficiency_scales_the_rate() -> None:
    whole, half = make_plan(make_config()), make_plan(make_config(efficiency=0.5))
    rates = (outcome["rate"]["per_minute_a_device"] for outcome in (half, whole))
    assert next(rates) == pytest.approx(next(rates) / 2)
    assert "50% of peak" in half["assumed"]


def test_a_rating_alone_is_one_prefill() -> None:
    rate = make_plan(make_config(critique=0))["rate"]
    assert rate["bound"] == "compute in prefill"
    assert rate["per_minute_a_device"] > 5 * make_plan(make_config())["rate"]["per_minute_a_device"]


def test_the_kv_cache_is_what_the_weights_leave() -> None:
    weights = LLAMA.weight_bytes("bf16") / 2**30
    rate = make_plan(make_config(tensor_parallel=2))["rate"]
    assert rate["kv_cache_gib"] == pytest.approx(2 * H200.memory_gib * 0.9 - weights)
    assert make_plan(make_config(kv_cache_gib=20))["rate"]["kv_cache_gib"] == 20


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


def test_the_command_prints_tables_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan.run(gpu="h200", wanted=1000.0, price=2.5) == 0
    output = capsys.readouterr().out
    assert "0.819 MB of KV a token" in output and "devices for 1000 a minute" in output
    assert "At most: 100% of peak" in output and "cost of 1,000" in output
    assert plan.run(gpu="h200", as_json=True) == 0
    assert json.loads(capsys.readouterr().out) == make_plan(make_config(as_json=True))


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "unknown GPU": ({"gpu": "h2000"}, "'h2000' is not in the table: use one of a100-40, a100-80"),
    "unknown model": ({"model": "llama-4"}, "no shape of 'llama-4'.*qwen2.5-7b"),
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
    "heads": ({"tensor_parallel": 3}, "3 does not divide the 40 attention.*1, 2, 4, 5, 8"),
    "custom, unmeasured": ({"gpu": "custom", "tflops": 9}, "needs --tflops, --bandwidth and"),
    "cpu, unmeasured": ({"gpu": "cpu"}, "needs --tflops and --bandwidth, or --measure"),
    "fp8 peak of a known one": ({"tflops_fp8": 9}, "are for --gpu custom or cpu, not h200"),
    "figures and measured": (
        {"gpu": "cpu", "measure": True, "tflops_fp8": 9},
        "--measure takes no --tflops, --tflops-fp8",
    ),
    "peaks of a known one": ({"tflops": 9}, "are for --gpu custom or cpu, not h200"),
    "GPU not measured": ({"measure": True}, "use --gpu cpu, not h200"),
    "no float32 peak": ({"weights": "float32"}, "no peak in float32.*plan weights and kv in bf16"),
    "efficiency": ({"efficiency": 1.5}, "efficiency: .*less than or equal to 1.*1.5"),
    "less than no tokens": ({"critique": -1}, "critique: .*greater than or equal to 0"),
}


@pytest.mark.parametrize(("flags", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_explained(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(AutojError, match=message):
        make_plan(make_config(**flags))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"model_type": "mixtral"}', "config.json: model_type is 'mixtral': only dense"),
        ('{"model_type": "llama", "num_attention_heads": 2}', "key 'hidden_size' is missing"),
        ("{", "not valid JSON"),
    ],
)
def test_a_config_that_cannot_be_read(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(ModelError, match=message):
        find_shape(str(tmp_path))


def test_custom_devices() -> None:
    flags = {"gpu": "custom", "tflops": 989, "bandwidth": 4800, "memory": 140.4}
    custom_plan, known_plan = make_plan(make_config(**flags)), make_plan(make_config())
    assert custom_plan["rate"] == known_plan["rate"]
    both = {"weights": "fp8", "kv": "fp8"}
    custom_plan, known_plan = (
        make_plan(make_config(**flags, tflops_fp8=1979, **both)),
        make_plan(make_config(**both)),
    )
    assert custom_plan["rate"] == known_plan["rate"]


def test_a_custom_device_without_fp8_units_computes_in_bf16() -> None:
    flags = {"gpu": "custom", "tflops": 312, "bandwidth": 2039, "memory": 80, "weights": "fp8"}
    custom_plan, known_plan = (
        make_plan(make_config(**flags)),
        make_plan(make_config(gpu="a100-80", weights="fp8")),
    )
    assert custom_plan["rate"] == known_plan["rate"]
    assert custom_plan["device"]["tflops"] == {"bf16": 312}


def test_the_peak_of_float32_weights_is_in_float32() -> None:
    flags = {"gpu": "cpu", "tflops": 0.3, "bandwidth": 25, "memory": 24, "model": "default"}
    cpu_plan = make_plan(make_config(**flags, weights="float32", kv="float32", kv_cache_gib=2))
    assert cpu_plan["device"]["tflops"] == {"float32": 0.3}


def test_gpus_by_the_name_they_report() -> None:
    assert find_gpu_by_driver_name("NVIDIA H200") is H200
    with pytest.raises(ConfigError, match="'Tesla T4'"):
        find_gpu_by_driver_name("Tesla T4")


def test_this_machine_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autoj_reward.capacity.roofline.MEASURED_S", 0.05)
    here = measure_machine()
    # A laptop's core and a large server both lie between.
    assert 0.001 < here.tflops["float32"] < 100
    assert 0.1 < here.bandwidth_gbs < 5000 and here.memory_gib > 0.5
