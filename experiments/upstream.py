"""Check that frameworks still have the code that this package's adapters call (make upstream).

`experiments/data/upstream.yaml` lists the modules, symbols and parameters, by framework. They are
looked up in the pinned release, in the newest one, and in those that were newest 3, 6, 9 and 12
months ago. With `from_pin`, releases older than the pin are left out. Nothing is installed or run:
the modules of each wheel are kept in runs/upstream and parsed.

The exit code is 1 if the newest release lacks something; with `held`, if the pinned one does.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib import metadata
from pathlib import Path

from pydantic import Field

from autoj_reward.cli.main import explain_errors
from autoj_reward.config import Block, load_config
from autoj_reward.errors import EngineError
from autoj_reward.io.markup import table
from requirements.install import pins, pip_configuration, uv_environment

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "experiments/data/upstream.yaml"
CACHE = ROOT / "runs/upstream"
"""Folder of the modules of each release, as NAME-VERSION.zip."""
MONTHS = (12, 9, 6, 3)
"""Ages in months at which the newest release of then is checked."""
MONTH = timedelta(days=30.5)
UNSATISFIABLE = 1
"""Exit code of `uv pip compile` if no release fits. Other failures have other codes."""
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class SymbolUse(Block):
    """What this package needs of a class or function beside its name."""

    takes: tuple[str, ...] = ()
    """Parameters that are passed to it: of the function, or of the class's `__init__` or fields."""
    has: tuple[str, ...] = ()
    """Words of its code: names, attributes, keywords of calls, and whole strings. They stand for
    what it passes to the adapter, or reads of the adapter's answer."""


class UpstreamFramework(Block):
    """A framework, and its code that is called."""

    package: str
    """Name on the package index."""
    cpu_build: str = ""
    """Name of a build of the same code that may be installed in its place."""
    python: str = "3.12"
    """Python version for which releases are looked up."""
    adapters: tuple[str, ...] = Field(min_length=1)
    """Files of this repository that call it."""
    from_pin: bool = False
    """Whether releases older than the pinned one are left out."""
    held: str = ""
    """Why this package stays at its pin. Only the pinned release must have all that is called."""
    calls: dict[str, dict[str, SymbolUse]]
    """By module and symbol, such as `Class.method`. A name that a module only imports, or names in
    a string to import it on first use, is a symbol too."""


class UpstreamTable(Block):
    """The table of all frameworks."""

    frameworks: dict[str, UpstreamFramework] = Field(min_length=1)


# Code


def find_symbol(module: ast.Module, name: str) -> list[ast.AST]:
    """Return the definitions of a symbol such as `Class.method`; several if branches define it."""
    scopes: list[ast.AST] = [module]
    for part in name.split("."):
        scopes = [definition for scope in scopes for definition in _find_definitions(scope, part)]
    return scopes


def _find_definitions(scope: ast.AST, name: str) -> list[ast.AST]:
    definitions = [node for node in _iterate_statements(scope) if name in _list_defined_names(node)]
    if definitions or not isinstance(scope, ast.Module):
        return definitions
    nodes = ast.walk(scope)
    return [node for node in nodes if isinstance(node, ast.Constant) and node.value == name]


def _iterate_statements(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements of a scope, also those of its branches."""
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, ast.stmt | ast.ExceptHandler):
            yield node
            if not isinstance(node, (*FUNCTIONS, ast.ClassDef)):
                yield from _iterate_statements(node)


def _list_defined_names(node: ast.AST) -> set[str]:
    if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name for alias in node.names}
    if isinstance(node, ast.Assign):
        return {target.id for target in node.targets if isinstance(target, ast.Name)}
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return {node.target.id}
    return set()


def list_parameter_names(node: ast.AST) -> set[str]:
    """Return the parameters of a function, or of a class's `__init__` and its annotated fields."""
    if isinstance(node, FUNCTIONS):
        arguments = node.args
        return {
            argument.arg
            for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        }
    annotated_fields = [
        inner for inner in _iterate_statements(node) if isinstance(inner, ast.AnnAssign)
    ]
    fields = {name for inner in annotated_fields for name in _list_defined_names(inner)}
    return fields.union(
        *(list_parameter_names(method) for method in _find_definitions(node, "__init__"))
    )


def list_code_words(node: ast.AST) -> set[str]:
    """Return the names, attributes, parameters, keywords and strings of a piece of code."""
    words: set[str] = set()
    for inner in ast.walk(node):
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            words.add(inner.value)
        for field in ("id", "attr", "arg", "name"):
            word = getattr(inner, field, None)
            if isinstance(word, str):
                words.add(word)
    return words


def find_missing_code(
    root: Path | zipfile.Path, calls: Mapping[str, Mapping[str, SymbolUse]]
) -> list[str]:
    """Return what the packages in a folder or archive lack, in words; [] if nothing."""
    missing = []
    for name, symbols in calls.items():
        path = name.replace(".", "/")
        files = (root / f"{path}.py", root / f"{path}/__init__.py")
        module = next((file for file in files if file.is_file()), None)
        lacks = _find_missing_symbols(module, symbols) if module else ["no such module"]
        missing += [f"`{name}`: {gap}" for gap in lacks]
    return missing


def _find_missing_symbols(
    file: Path | zipfile.Path, symbols: Mapping[str, SymbolUse]
) -> Iterator[str]:
    try:
        module = ast.parse(file.read_text(encoding="utf-8"))
    except SyntaxError as error:
        yield f"Python {sys.version_info[0]}.{sys.version_info[1]} cannot parse it: {error.msg}"
        return
    for name, use in symbols.items():
        definitions = find_symbol(module, name)
        if not definitions:
            yield f"no `{name}`"
            continue
        parameters = set().union(*map(list_parameter_names, definitions))
        yield from (
            f"`{name}` takes no `{parameter}`"
            for parameter in use.takes
            if parameter not in parameters
        )
        words = set().union(*map(list_code_words, definitions))
        yield from (f"`{name}` has no `{word}`" for word in use.has if word not in words)


# Releases


def read_pinned_versions(makefile: str) -> dict[str, str]:
    """Return the pinned version of each package: of requirements/gpu.txt, else of the Makefile."""
    tested_versions = dict(re.findall(r"(?<=\s)([\w-]+)==([\w.]+)", makefile))
    return {
        **{name.replace("_", "-"): number for name, number in tested_versions.items()},
        **pins("gpu"),
    }


def list_releases(framework: UpstreamFramework, pinned: str, now: datetime) -> list[str]:
    """Return the versions to check, oldest first. Raises EngineError if the index has none."""
    newest = find_newest_release(framework, None)
    if newest is None:
        raise EngineError(f"the package index has no {framework.package}")
    past_releases = [find_newest_release(framework, now - months * MONTH) for months in MONTHS]
    versions = {version for version in (*past_releases, newest) if version} | {pinned}
    ordered_versions = sorted(versions, key=parse_version)
    return (
        ordered_versions[ordered_versions.index(pinned) :]
        if framework.from_pin
        else ordered_versions
    )


def parse_version(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, to sort by."""
    return tuple(map(int, re.findall(r"\d+", version)))


@cache
def make_index_environment() -> dict[str, str]:
    """Return the variables with which uv asks the indexes that pip is configured to use."""
    return uv_environment(pip_configuration(), os.environ)


def find_newest_release(framework: UpstreamFramework, before: datetime | None) -> str | None:
    """Return the newest version, uploaded before a time if one is given; None if there is none.

    Raises EngineError if the index cannot be asked.
    """
    limit = ["--exclude-newer", before.strftime("%Y-%m-%d")] if before else []
    words = ["pip", "compile", "--quiet", "--no-deps", "--no-header", "--no-annotate", *limit]
    # Without --python it would start every Python of this machine to find one of that version.
    words += ["--python", sys.executable, "--python-version", framework.python, "-"]
    process = subprocess.run(
        [Path(sys.executable).with_name("uv"), *words],
        input=framework.package,
        capture_output=True,
        text=True,
        env=make_index_environment(),
        check=False,
    )
    if process.returncode == UNSATISFIABLE:
        return None
    if process.returncode:
        raise EngineError(f"uv cannot look up {framework.package}: {process.stderr.strip()}")
    return process.stdout.strip().rpartition("==")[2]


def find_installed_code(framework: UpstreamFramework, version: str) -> Path | None:
    """Return the folder in which a release is installed; None if it is not."""
    for name in filter(None, (framework.package, framework.cpu_build)):
        for distribution in metadata.distributions(name=name):
            if distribution.version == version:
                return Path(str(distribution.locate_file("")))
    return None


def fetch_release_code(framework: UpstreamFramework, version: str) -> Path | zipfile.Path | None:
    """Return the root of a release's modules: where it is installed, else an archive of them.

    None if it has no wheel: pip would run the code of a source package. Raises EngineError if it
    cannot be downloaded.
    """
    if installed := find_installed_code(framework, version):
        return installed
    archive = CACHE / f"{framework.package}-{version}.zip"
    if not archive.is_file():
        print(f"downloading {framework.package} {version}", file=sys.stderr)
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            wheel = _download_wheel(framework, version, folder)
            if wheel is None:
                return None
            modules = Path(folder) / "modules"
            _keep_modules(wheel, modules)
            modules.replace(archive)
    return zipfile.Path(archive)


def _download_wheel(framework: UpstreamFramework, version: str, folder: str) -> Path | None:
    words = ["pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    words += ["--python-version", framework.python, "--dest", folder]
    process = subprocess.run(
        [sys.executable, "-m", *words, f"{framework.package}=={version}"],
        capture_output=True,
        text=True,
        check=False,
    )
    if "No matching distribution found" in process.stderr:
        return None
    if process.returncode:
        raise EngineError(
            f"cannot download {framework.package} {version}: {process.stderr.strip()}"
        )
    [wheel] = Path(folder).glob("*.whl")
    return wheel


def _keep_modules(wheel: Path, target: Path) -> None:
    """Copy the Python modules of a wheel to an archive."""
    with (
        zipfile.ZipFile(wheel) as archive,
        zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as modules,
    ):
        for name in archive.namelist():
            if name.endswith(".py"):
                # Wheels with compiled code may keep their modules one folder down.
                modules.writestr(
                    re.sub(r"^[^/]+\.data/(pure|plat)lib/", "", name), archive.read(name)
                )


# Report


def find_missing_in_release(framework: UpstreamFramework, version: str) -> list[str]:
    """Return a message for each symbol that our adapters use and this release does not have.

    Raises EngineError if the release cannot be downloaded.
    """
    root = fetch_release_code(framework, version)
    return find_missing_code(root, framework.calls) if root else ["no wheel, so nothing was read"]


def check_frameworks(
    frameworks: Mapping[str, UpstreamFramework], pinned: Mapping[str, str], now: datetime
) -> tuple[str, bool]:
    """Return the report, and whether each decisive release has all that is called.

    pinned: version of each package. now: the time from which `MONTHS` are counted. The decisive
    release is the newest one; of a held framework, the pinned one. Raises EngineError if a release
    cannot be looked up or downloaded.
    """
    rows, notes, fits = [], [], True
    for name, framework in frameworks.items():
        pin = pinned[framework.package]
        versions = list_releases(framework, pin, now)
        missing = {version: find_missing_in_release(framework, version) for version in versions}
        complete, incomplete = (
            ", ".join(version for version in versions if bool(missing[version]) is lacking)
            for lacking in (False, True)
        )
        rows.append((name, pin, complete, incomplete))
        notes += [f"- {name} {version}: {gap}" for version in versions for gap in missing[version]]
        if missing[versions[-1]] and framework.held:
            notes.append(f"- {name}: held at {pin}: {framework.held}")
        if missing[pin if framework.held else versions[-1]]:
            fits = False
            notes.append(f"- {name}: to mend: {', '.join(framework.adapters)}")
    head = ("framework", "pinned", "all is there", "something is missing, or no wheel")
    return "\n".join([*table(head, rows), "", *notes]).rstrip(), fits


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report and return the exit code. Without arguments read those of the process."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.upstream",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_args(arguments)

    def run() -> int:
        frameworks = load_config(UpstreamTable, TABLE).frameworks
        pinned = read_pinned_versions((ROOT / "Makefile").read_text(encoding="utf-8"))
        text, fits = check_frameworks(frameworks, pinned, datetime.now(UTC))
        print(text)
        return 0 if fits else 1

    return explain_errors("upstream", run)


if __name__ == "__main__":
    sys.exit(main())
