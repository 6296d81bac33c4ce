from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from autoj_reward.config import (
    BestOfNConfig,
    Block,
    JudgeConfig,
    PolicyConfig,
    RankConfig,
    RewardConfig,
    ScoreConfig,
    load_config,
)
from autoj_reward.config.load import check, parse_yaml
from autoj_reward.data.collect import CollectConfig
from autoj_reward.errors import ConfigError, FormatError
from autoj_reward.evaluate.selection import SelectionConfig
from autoj_reward.formats.criteria import read_criteria
from autoj_reward.formats.schema import load_any_format
from tests.support.configs import ACCELERATE, CONFIGS, OURS, contains_values, kind_of, write_config

JOB = {"input": "q.jsonl", "output": "runs/x"}


@pytest.mark.parametrize("path", OURS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_config_of_the_repository_loads(path: Path) -> None:
    expected = yaml.safe_load(path.read_text(encoding="utf-8"))
    loaded = load_config(kind_of(path), path).model_dump(mode="json")
    assert contains_values(loaded, expected)


def test_accelerate_reads_its_config() -> None:
    from accelerate.commands.config.config_args import load_config_from_file

    ddp, fsdp = (load_config_from_file(str(path)) for path in ACCELERATE)
    assert ddp.distributed_type == "MULTI_GPU" and ddp.mixed_precision == "bf16"
    assert fsdp.distributed_type == "FSDP" and fsdp.fsdp_config["fsdp_version"] == 2


def test_there_are_configs() -> None:
    assert {"best_of_32", "score"} <= {path.stem for path in OURS}
    assert {path.parent.name for path in {*CONFIGS} - {*OURS, *ACCELERATE}} == {"experiments"}


@pytest.mark.parametrize(
    ("data", "key", "nearest", "known_keys"),
    [
        pytest.param(
            {"ouput": 1},
            "ouput",
            "output",
            "journal, judge, layout, max_usd, output, panel, policy",
            id="top",
        ),
        pytest.param(
            {"judge": {"modle": "x"}},
            "judge.modle",
            "judge.model",
            "max_model_len, max_sequences, max_text_chars, max_tokens",
            id="block",
        ),
        pytest.param(
            {"judge": {"serve": {"replica": 2}}},
            "judge.serve.replica",
            "judge.serve.replicas",
            "deadline_s, max_ongoing, max_replicas, num_cpus, num_gpus, replicas",
            id="third level",
        ),
        pytest.param({"policy": {"N": 4}}, "policy.N", "", "max_tokens, model, n,", id="optional"),
        pytest.param(
            {"policy": {"serve": {"x": 4}}}, "policy.serve.x", "", "deadline_s", id="below it"
        ),
        pytest.param({"kind": "fake"}, "kind", "judge.kind", "input, journal", id="other block"),
        pytest.param(
            {"ray_data": {"shards": 2, "n": 3}}, "ray_data.n", "policy.n", "shards", id="shortest"
        ),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_and_all_that_is_known(
    tmp_path: Path, data: dict[str, Any], key: str, nearest: str, known_keys: str
) -> None:
    path = write_config(tmp_path, JOB | data)
    with pytest.raises(ConfigError) as caught:
        load_config(BestOfNConfig, path)
    message = str(caught.value)
    suggestion = f": did you mean `{nearest}`?" if nearest else ""
    assert message.startswith(f"{path}: unknown key {key!r}{suggestion} (known here: ")
    assert known_keys in message


@pytest.mark.parametrize(
    ("kind", "data", "message"),
    [
        pytest.param(
            CollectConfig,
            {
                "protocol": "single",
                "teacher": {},
                "output": "o",
                "sources": [{"path": "a"}, {"pth": "b"}],
            },
            "unknown key 'sources.1.pth': did you mean `sources.1.path`? (known here: ",
            id="list",
        ),
        pytest.param(
            RewardConfig,
            {"parts": {"judge_2": {"judge": {"knid": "fake"}}}},
            "unknown key 'parts.judge_2.judge.knid': did you mean `parts.judge_2.judge.kind`?",
            id="name",
        ),
    ],
)
def test_an_unknown_key_below_a_list_or_a_name(
    tmp_path: Path, kind: type[Block], data: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(kind, write_config(tmp_path, data))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "key", "owners"),
    [
        (ScoreConfig, "parts", "RewardConfig"),
        (RankConfig, "shortlist", "BestOfNConfig"),
        (RewardConfig, "tie_break", "BestOfNConfig"),
    ],
)
def test_an_unknown_key_of_another_run_file_says_where_it_belongs(
    kind: type[Block], key: str, owners: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        check(kind, {key: 1}, "run.yaml")
    message = f"unknown key {key!r}: here it has no place, it is a key of {owners} (known here: "
    assert message in str(caught.value)


def test_an_override_changes_one_block_of_those_that_share_an_alias(tmp_path: Path) -> None:
    text = "grader: &own {format: general, serve: {replicas: 2}}\njudge: *own"
    sets = ["judge.seed=7", "judge.serve.replicas=3"]
    config = load_config(SelectionConfig, write_config(tmp_path, text), sets)
    assert (config.judge.seed, config.judge.serve.replicas) == (7, 3)
    assert (config.grader.seed, config.grader.serve.replicas) == (0, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("judge:\n  seed: 1\n  seed: 2", "line 3: the key 'seed' stands", id="twice"),
        pytest.param("judge: {}\nswap: true\njudge: {}", "line 3: the key 'judge'", id="block"),
        pytest.param("{1: a, 0x1: b}", "the key 1 stands twice, first on line 1", id="number"),
        pytest.param("a: {<<: {b: 1}, <<: {c: 1}}", "the key '<<' stands twice", id="merged twice"),
        pytest.param("a: &a [*a]", "nested too deeply", id="endless"),
        pytest.param("x" * 300_000, "longer than 262,144 characters", id="long"),
        pytest.param("a: \0", "special characters are not allowed", id="control character"),
        pytest.param("[" * 20_000, "nested too deeply", id="deep"),
    ],
)
def test_a_yaml_text_that_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = write_config(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_config(ScoreConfig, path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)
    with pytest.raises(FormatError, match=re.escape(message)):
        load_any_format(str(path))
    with pytest.raises(ConfigError, match=re.escape(message)):
        read_criteria(path)
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_config(ScoreConfig, None, [f"judge.script={text}"])


def test_a_key_over_what_is_merged_stands_once() -> None:
    text = "a: &a {x: 1, y: 2}\nb: &b {<<: *a, x: 3}\nc: {<<: *b, y: 4}"
    assert parse_yaml(text, "text")["c"] == {"x": 3, "y": 4}


def test_includes_are_bounded(tmp_path: Path) -> None:
    for n in range(12):
        lines = (f"{name}: !include {n + 1}.yaml\n" for name in "abcdefgh")
        (tmp_path / f"{n}.yaml").write_text("".join(lines))
    (tmp_path / "12.yaml").write_text("x: {type: content, content: X}")
    with pytest.raises(ConfigError, match="more than 200 files are included"):
        read_criteria(tmp_path / "0.yaml", tmp_path)


@pytest.mark.parametrize(
    ("data", "parts"),
    [
        pytest.param({"judge": {"max_tokens": "many"}}, ["judge.max_tokens", "'many'"], id="type"),
        pytest.param({"judge": {"max_tokens": 0}}, ["judge.max_tokens", "'0'"], id="range"),
        pytest.param({"judge": {"dtype": "int4"}}, ["judge.dtype", "'int4'"], id="choice"),
        pytest.param({"judge": "default"}, ["judge", "'default'"], id="no block"),
        pytest.param({"tie_break": ["coin"]}, ["tie_break.0", "'coin'"], id="rule"),
        pytest.param(
            {"tie_break": ["first", "first"]}, ["tie_break names a rule twice"], id="rule twice"
        ),
        pytest.param(
            {"judge": {"serve": {"replicas": 0}}}, ["it must be at least 1"], id="replicas"
        ),
        pytest.param(
            {"judge": {"serve": {"replicas": 4, "max_replicas": 2}}},
            ["max_replicas is 2 and replicas 4"],
            id="autoscaling bounds",
        ),
        pytest.param(
            {"judge": {"serve": {"max_replicas": 2}}},
            ["max_replicas is 2 and replicas auto"],
            id="no lower bound",
        ),
        pytest.param({"judge": {"critiques": 3}}, ["set a temperature"], id="equal critiques"),
        pytest.param({"judge": {"kind": "openai"}}, ["base_url is for kind: openai"], id="no url"),
        pytest.param({"judge": {"base_url": "http://x"}}, ["base_url is for kind"], id="url alone"),
        pytest.param(
            {"judge": {"seed": "a", "top_p": 2}}, ["judge.seed", "judge.top_p"], id="all at once"
        ),
        pytest.param({"input": None}, ["input", "'None'"], id="null"),
        pytest.param({"ray_data": {"shards": 0}}, ["ray_data.shards", "'0'"], id="no shard"),
        pytest.param({"ray_data": {}}, ["'ray_data.shards' is missing"], id="shards"),
        pytest.param(
            {"ray_data": {"shards": 2, "concurrency": 0}}, ["ray_data.concurrency"], id="no worker"
        ),
        pytest.param(
            {"ray_data": {"shards": 2}, "journal": "j.sqlite"},
            ["journal is j.sqlite, and with ray_data each shard has one of its own"],
            id="shards with a journal",
        ),
        pytest.param(
            {"ray_data": {"shards": 2}, "input": "-"},
            ["write it into a file"],
            id="shards of stdin",
        ),
    ],
)
def test_a_wrong_value_is_named(tmp_path: Path, data: dict[str, Any], parts: list[str]) -> None:
    path = write_config(tmp_path, JOB | data)
    with pytest.raises(ConfigError) as caught:
        load_config(BestOfNConfig, path)
    assert str(caught.value).startswith(f"{path}: ")
    for part in parts:
        assert part in str(caught.value)


def test_missing_keys_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"key 'input' is missing; key 'output' is missing"):
        load_config(BestOfNConfig, write_config(tmp_path, ""))


@pytest.mark.parametrize(
    ("sets", "read_value", "value"),
    [
        pytest.param(["swap=false"], lambda c: c.swap, False, id="top"),
        pytest.param(["judge.max_tokens=7"], lambda c: c.judge.max_tokens, 7, id="over the file"),
        pytest.param(
            ["judge.serve.replicas=3"], lambda c: c.judge.serve.replicas, 3, id="new block"
        ),
        pytest.param(["judge.model=a=b"], lambda c: c.judge.model, "a=b", id="equals sign"),
        pytest.param(["judge.revision="], lambda c: c.judge.revision, None, id="empty is null"),
        pytest.param(["judge.seed=1", "judge.seed=2"], lambda c: c.judge.seed, 2, id="last wins"),
        pytest.param(
            ["judge.script={fail: {a: hang}}"],
            lambda c: c.judge.script,
            {"fail": {"a": "hang"}},
            id="mapping",
        ),
    ],
)
def test_overrides(tmp_path: Path, sets: list[str], read_value: Any, value: Any) -> None:
    path = write_config(tmp_path, {"judge": {"max_tokens": 5, "temperature": 0.5}})
    config = load_config(ScoreConfig, path, sets)
    assert read_value(config) == value
    assert config.judge.temperature == 0.5


def test_an_override_names_standard_input() -> None:
    assert load_config(BestOfNConfig, None, ["input=-", "output=out"]).input == "-"


def test_overrides_alone_make_a_config() -> None:
    assert load_config(ScoreConfig, None, ["judge.seed=4"]).judge.seed == 4


@pytest.mark.parametrize(
    ("item", "message"),
    [
        pytest.param("judge.seed", "write it as key=value", id="no value"),
        pytest.param("=3", "write it as key=value", id="no key"),
        pytest.param("swap.seed=3", "'swap' is not a block", id="below a value"),
        pytest.param("judge.model=[", "not valid YAML", id="bad YAML"),
        pytest.param("judge.model=2001-99-99", "not valid YAML", id="no date"),
        pytest.param("judge.modle=x", "unknown key 'judge.modle'", id="unknown key"),
    ],
)
def test_a_wrong_override_is_named(tmp_path: Path, item: str, message: str) -> None:
    path = write_config(tmp_path, {"swap": True})
    with pytest.raises(ConfigError) as caught:
        load_config(ScoreConfig, path, [item])
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("judge: [", "not valid YAML", id="syntax"),
        pytest.param("a: 2001-99-99", "not valid YAML", id="no date"),
        pytest.param("- judge", "must be a mapping, not list", id="list"),
        pytest.param("judge", "must be a mapping, not str", id="text"),
        pytest.param("judge: !!python/object:os.system {}", "not valid YAML", id="python tag"),
    ],
)
def test_a_file_that_is_no_config(tmp_path: Path, text: str, message: str) -> None:
    path = write_config(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_config(ScoreConfig, path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"), [("none.yaml", "No such file"), (".", "Is a directory")], ids=str
)
def test_a_file_that_cannot_be_read(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"cannot read the config: {message}"):
        load_config(ScoreConfig, tmp_path / name)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(b"judge: \xff\xfe")
    with pytest.raises(ConfigError, match="not valid YAML"):
        load_config(ScoreConfig, path)


def test_configs_are_frozen_and_defaults_are_the_papers() -> None:
    policy, judge = PolicyConfig(), JudgeConfig()
    assert (policy.n, policy.temperature, judge.temperature) == (32, 1.0, 0.0)
    assert BestOfNConfig.model_validate(JOB).tie_break == (
        "policy_logprob",
        "expected_rating",
        "pairwise",
        "first",
    )
    with pytest.raises(ValueError, match="frozen"):
        judge.seed = 3  # type: ignore[misc]


def list_blocks(kind: type[Block]) -> list[type[Block]]:
    return [kind, *(block for below in kind.__subclasses__() for block in list_blocks(below))]


def test_no_number_of_any_block_may_be_infinite() -> None:
    checked_values = 0
    for block in list_blocks(Block):
        for name, field in block.model_fields.items():
            shape = str(field.annotation)
            if not re.search(r"\bfloat\b", shape):
                continue
            for bad in (math.nan, math.inf, -math.inf):
                value = (bad, 1.0) if "tuple" in shape else bad
                with pytest.raises(ValidationError) as caught:
                    block.model_validate({name: value})
                errors = [error for error in caught.value.errors() if error["loc"][0] == name]
                assert errors, f"{block.__name__}.{name} takes {value}"
                checked_values += 1
    assert checked_values > 60
