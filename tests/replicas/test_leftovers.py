"""Processes and memory that killed processes leave are removed at the next start; nothing
else is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker, shared_memory
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from autoj_reward.replicas import leftovers

pytestmark = pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs /proc and /dev/shm")

WRITER = """
import subprocess, sys, time
from multiprocessing import resource_tracker, shared_memory
from autoj_reward.replicas.leftovers import record_processes

memory = shared_memory.SharedMemory(create=True, size=4096)
resource_tracker.unregister(memory._name, "shared_memory")  # it would be killed too
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
record_processes()
print(memory.name, child.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AUTOJ_CACHE", str(tmp_path))
    return tmp_path


@contextmanager
def writer() -> Iterator[tuple[subprocess.Popen[str], Path, psutil.Process]]:
    """Start a process that has recorded its memory and its child."""
    command = [sys.executable, "-c", WRITER]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    name, pid = process.stdout.readline().split()
    child = psutil.Process(int(pid))
    try:
        yield process, Path("/dev/shm") / name, child
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        if child.is_running():
            child.kill()
        (Path("/dev/shm") / name).unlink(missing_ok=True)


def notes(folder: Path) -> list[Path]:
    return list(folder.rglob("running/*/*.json"))


def test_what_the_dead_left_goes_and_what_the_living_have_stays(cache: Path) -> None:
    with writer() as (dead, lost, orphan), writer() as (living, kept, child):
        dead.send_signal(signal.SIGKILL)
        dead.wait()
        assert lost.exists() and orphan.is_running()
        leftovers.remove_leftovers()
        assert not lost.exists()
        assert not orphan.is_running() or orphan.status() == psutil.STATUS_ZOMBIE
        assert kept.exists() and child.is_running() and living.poll() is None
        assert len(notes(cache)) == 1
        leftovers.remove_leftovers()
        assert kept.exists() and child.is_running()


STARTING = """
import subprocess, sys, time
from autoj_reward.replicas.leftovers import keep_recording

with keep_recording():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print(child.pid, flush=True)
    time.sleep(600)
"""


def test_an_engine_that_was_killed_while_it_started_goes_too(cache: Path) -> None:
    command = [sys.executable, "-c", STARTING]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = psutil.Process(int(process.stdout.readline()))
        try:
            while not any(str(child.pid) in note.read_text() for note in notes(cache)):
                assert process.poll() is None
                time.sleep(0.05)
            process.kill()
            process.wait()
            leftovers.remove_leftovers()
            assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
        finally:
            process.kill()
            if child.is_running():
                child.kill()


def test_memory_that_somebody_maps_and_ids_that_changed_hands_stay(cache: Path) -> None:
    memory = shared_memory.SharedMemory(create=True, size=4096)
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        leftovers.record_processes()
        [own] = notes(cache)
        facts: dict[str, Any] = json.loads(own.read_text())
        assert memory.name in facts["shared"]
        assert facts["processes"] == [[other.pid, leftovers._read_start_time(other.pid)]] or any(
            pid == other.pid for pid, _ in facts["processes"]
        )
        own.unlink()
        # A dead writer's note, of a process that has this id now and memory that is in use.
        facts["processes"] = [[other.pid, "1"], [2**22 + 1, "1"]]
        (own.parent / "1-1.json").write_text(json.dumps(facts))
        leftovers.remove_leftovers()
        assert not notes(cache) and other.poll() is None
        assert (Path("/dev/shm") / memory.name).exists()
    finally:
        other.kill()
        other.wait()
        memory.close()
        memory.unlink()
    resource_tracker.ensure_running()


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"processes": 3, "shared": []}'])
def test_a_note_that_is_none(cache: Path, text: str) -> None:
    leftovers.record_processes()
    [own] = notes(cache)
    (own.parent / "1-1.json").write_text(text)
    (own.parent / "odd.json").write_text(text)
    leftovers.remove_leftovers()
    assert {path.name for path in notes(cache)} == {own.name, "odd.json"}
    assert oct(os.stat(own.parent).st_mode)[-3:] == "700"


def test_no_path_leads_out_of_the_shared_memory(cache: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("x")
    leftovers.record_processes()
    [own] = notes(cache)
    facts = {"processes": [], "shared": [str(precious), "../../precious"]}
    (own.parent / "1-1.json").write_text(json.dumps(facts))
    leftovers.remove_leftovers()
    assert precious.exists()
