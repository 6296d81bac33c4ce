"""A model's identity is made of every byte of its folder, or the commit of its hub name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from autoj_reward.config import EngineConfig, JudgeConfig
from autoj_reward.errors import ModelError
from autoj_reward.models import ResolvedModel, fingerprint, identity, resolve
from autoj_reward.models.identity import folder_identity, hub_commit
from autoj_reward.models.spec import judge_spec

FILES = (
    "config.json",
    "model-00001-of-00002.safetensors",
    "pytorch_model.bin",
    "consolidated.00.pth",
    "tokenizer.model",
    "merges.txt",
    "chat_template.jinja",
    "modeling_own.py",
    "additional_chat_templates/tool.jinja",
    "own/layers.py",
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AUTOJ_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(identity, "SETTLED_NS", 0)
    judge_folder = tmp_path / "judge"
    for name in FILES:
        (judge_folder / name).parent.mkdir(parents=True, exist_ok=True)
        (judge_folder / name).write_bytes(name.encode() * 100)
    (judge_folder / "pytorch_model.bin").write_bytes(bytes(3 << 20))
    return judge_folder


def flip(path: Path) -> None:
    """Change a byte in the middle in place, and restore the time of modification."""
    facts = path.stat()
    with path.open("r+b") as file:
        file.seek(facts.st_size // 2)
        file.write(b"~")
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))


@pytest.mark.parametrize("name", FILES)
def test_any_byte_of_any_file_counts(folder: Path, name: str) -> None:
    before = folder_identity(folder)
    assert before.startswith("judge-") and folder_identity(folder) == before
    flip(folder / name)
    assert folder_identity(folder) != before


@pytest.mark.parametrize(
    ("change", "counts"),
    [
        pytest.param(lambda f: (f / "merges.txt").unlink(), True, id="a file less"),
        pytest.param(lambda f: (f / "merges.txt").rename(f / "merged.txt"), True, id="a name"),
        pytest.param(lambda f: (f / "added.bin").touch(), True, id="a file more"),
        pytest.param(lambda f: (f / "README.md").write_text("card"), False, id="the card"),
        pytest.param(lambda f: (f / ".git").mkdir(), False, id="hidden"),
    ],
)
def test_names_count_too(folder: Path, change: Callable[[Path], object], counts: bool) -> None:
    before = folder_identity(folder)
    change(folder)
    assert (folder_identity(folder) != before) == counts


def test_a_large_file_is_read_once(folder: Path, tmp_path: Path) -> None:
    before = folder_identity(folder)
    [note] = (tmp_path / "cache/digests").iterdir()
    assert folder_identity(folder) == before
    note.write_text(note.read_text().replace('"sha256": "', '"sha256": "0'))
    assert folder_identity(folder) != before  # so the note was what was read
    for text in ("", "[]", "{}", '{"version": 1}'):
        note.write_text(text)
        assert folder_identity(folder) == before


def test_a_file_of_this_moment_is_read_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "SETTLED_NS", 10**18)
    folder_identity(folder)
    assert not (tmp_path / "cache/digests").exists()


def test_without_a_cache_all_is_read_each_time(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = folder_identity(folder)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AUTOJ_CACHE", str(tmp_path / "file/cache"))
    assert folder_identity(folder) == before


def test_a_folder_s_judge_and_an_endpoint_s_tokenizer(folder: Path, tmp_path: Path) -> None:
    served = JudgeConfig(
        kind="openai", base_url="http://127.0.0.1:1/v1", model="served", tokenizer=str(folder)
    )
    local = JudgeConfig(model=str(folder))
    before = judge_spec(local).name, judge_spec(served).name
    flip(folder / "tokenizer.model")
    after = judge_spec(local).name, judge_spec(served).name
    assert before[0] != after[0] and before[1] != after[1]
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"no config.json in the model folder"):
        resolve(local)


def test_a_hub_name_is_the_commit_that_it_stands_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Read from the environment once in a process.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    model, (old, new) = tmp_path / "models--owner--judge", ("a" * 40, "b" * 40)
    (model / "refs").mkdir(parents=True)
    for commit in (old, new):
        (model / "snapshots" / commit).mkdir(parents=True)
        (model / "snapshots" / commit / "config.json").write_text("{}")

    def resolve_at(main: str, revision: str | None) -> ResolvedModel:
        (model / "refs/main").write_text(main)
        hub_commit.cache_clear()  # which a process asks the hub for once
        return resolve(EngineConfig(model="owner/judge", revision=revision))

    first, second = resolve_at(old, None), resolve_at(new, None)
    assert (first.path, first.identity, first.revision) == (
        "owner/judge", f"owner/judge@{old}", old,
    )  # fmt: skip
    assert (second.identity, second.revision) == (f"owner/judge@{new}", new)
    assert resolve_at(old, new).identity == f"owner/judge@{new}"
    with pytest.raises(ModelError, match=r"^owner/judge: neither the model hub nor its") as caught:
        resolve_at(old, "other")
    assert "revision other" in str(caught.value)
    assert str(caught.value).endswith("or name a folder")
    hub_commit.cache_clear()


def test_a_whole_commit_needs_no_hub() -> None:
    assert hub_commit("nobody/nothing", "c" * 40) == "c" * 40


def test_another_version_of_the_engine_or_of_our_reading_is_another_judge(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local, scripted = JudgeConfig(model=str(folder)), JudgeConfig(kind="fake")
    before = judge_spec(local).name, judge_spec(scripted).name
    info = tmp_path / "packages/vllm-99.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 99.1\n")
    monkeypatch.syspath_prepend(info.parent)
    upgraded = judge_spec(local).name, judge_spec(scripted).name
    assert upgraded[0] != before[0] and upgraded[1] == before[1]
    monkeypatch.setattr(fingerprint, "READING", fingerprint.READING + 1)
    assert judge_spec(local).name != upgraded[0] and judge_spec(scripted).name != upgraded[1]
