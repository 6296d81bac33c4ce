"""Common command line of all studies: config and flags, result file and report, error handling.

A study is a module with a config, a function that measures, and
`main = study_command(Config, measure)`. Its results go to NAME.json, with the command, date,
machine, versions and config, and to NAME.md. The module's docstring is its --help.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import Field

from autoj_reward.cli.main import explain_errors
from autoj_reward.config import Block, load_config
from autoj_reward.errors import ConfigError, EngineError
from autoj_reward.evaluate.statistics import Draws
from autoj_reward.io.claims import claim
from autoj_reward.io.files import to_plain, write_json, write_text
from autoj_reward.io.provenance import describe_machine, installed_versions


class StudyConfig(Block):
    """Settings of every study."""

    output: Path
    """Folder of the results."""

    def possible(self) -> Sequence[str]:
        """Return the parts that this config can run. Empty if the study has no parts."""
        return ()

    def select_parts(self, requested: str | None) -> tuple[str, ...]:
        """Return the parts named by --parts, in the order of `possible`.

        Without --parts, return all.

        Raises ConfigError for a name that is unknown or that the config leaves out.
        """
        possible = self.possible()
        names = possible if requested is None else [name.strip() for name in requested.split(",")]
        if unknown := [name for name in names if name not in possible]:
            choices = ", ".join(possible)
            raise ConfigError(f"--parts {', '.join(unknown)}: this config has the parts {choices}")
        return tuple(part for part in possible if part in names)


class ResampledConfig(StudyConfig):
    """Settings of a study with bootstrapped 95 % intervals."""

    bootstrap: int = Field(2000, ge=1)
    """Number of resamples for each interval."""
    seed: int = 0
    """Seed of the resamples."""

    @property
    def draws(self) -> Draws:
        """Resamples of the intervals."""
        return Draws(self.bootstrap, self.seed)


T = TypeVar("T", bound=StudyConfig)


@dataclass(frozen=True, slots=True)
class Study(Generic[T]):
    """One run of a study."""

    config: T
    command: str = ""
    """Command line as typed."""
    parts: tuple[str, ...] = ()
    """Parts to run."""
    limit: int | None = None
    """Value of --limit: the number of rows for a quick look."""

    def head(self) -> dict[str, Any]:
        """Return the command, date, machine, versions, parts and config of a result."""
        return {
            "command": self.command,
            "at": time.strftime("%Y-%m-%d"),
            "machine": describe_machine(),
            "versions": installed_versions(),
            "parts": self.parts,
            "config": self.config.model_dump(mode="json"),
        }

    def write(
        self,
        name: str,
        figures: Mapping[str, Any],
        render: Callable[[dict[str, Any]], str],
        plots: Callable[[dict[str, Any]], Mapping[str, str]] = lambda result: {},
    ) -> str:
        """Write the result, its report and its plots (SVG by name) to the output folder.

        Return the report.
        """
        result: dict[str, Any] = to_plain(self.head() | dict(figures))
        write_json(self.config.output / f"{name}.json", result)
        text = render(result)
        write_text(self.config.output / f"{name}.md", text)
        for plot, svg in plots(result).items():
            write_text(self.config.output / f"{name}-{plot}.svg", svg)
        return text

    def steps(
        self,
        name: str,
        work: Mapping[str, Callable[[], Any]],
        render: Callable[[dict[str, Any]], str],
        final: Callable[[Any], bool] = lambda figures: True,
        free: Collection[str] = (),
        plots: Callable[[dict[str, Any]], Mapping[str, str]] = lambda result: {},
    ) -> str:
        """Run the steps that are not done, write the report after each, and return the last report.

        With --parts only those steps run. The plain data that a step returns is saved in
        `steps/STEP.json` of the output folder, so the same command resumes a run. The folder
        belongs to this config.

        `final` says whether a step's data is saved. If not, it is only reported, and the next run
        measures it again. `free` names config keys that may differ when a run resumes. Raises
        ConfigError for a folder with the steps of another config.
        """
        output = self.config.output
        claim(output, self.config, {"output", *free})
        paths = {step: output / "steps" / f"{step}.json" for step in work}
        results = {
            step: json.loads(path.read_text(encoding="utf-8"))
            for step, path in paths.items()
            if path.is_file()
        }
        text = self.write(name, {"steps": results}, render, plots)
        for step in (step for step in self.parts or work if step not in results):
            print(f"== {step}", file=sys.stderr)
            results[step] = to_plain(work[step]())
            if final(results[step]):
                write_json(paths[step], results[step])
            ordered_results = {step: results[step] for step in work if step in results}
            text = self.write(name, {"steps": ordered_results}, render, plots)
        return text


def study_command(
    kind: type[T],
    work: Callable[[Study[T]], str | Awaitable[str]],
    parts: Sequence[str] = (),
    limit: str | None = None,
) -> Callable[..., int]:
    """Return the `main` of a study. Without arguments it reads those of the process.

    `work` measures and returns the text to print. `parts` may be named by --parts, and `limit` says
    what --limit counts. The exit code is 0, 1 for an explained error, or 130 if interrupted.
    """

    def main(arguments: Sequence[str] | None = None) -> int:
        words = list(sys.argv[1:] if arguments is None else arguments)
        module = sys.modules[work.__module__]
        name = module.__spec__.name.removesuffix(".__main__") if module.__spec__ else work.__name__
        flags = _make_parser(name, module.__doc__, parts, limit).parse_args(words)

        def run() -> int:
            config = load_config(kind, flags.config, flags.sets)
            command = shlex.join(["python", "-m", name, *words])
            outcome = work(Study(config, command, config.select_parts(flags.parts), flags.limit))
            print(asyncio.run(_await_text(outcome)) if inspect.isawaitable(outcome) else outcome)
            return 0

        return explain_errors(name.rpartition(".")[2], run)

    return main


def run_training(
    name: str,
    algorithm: str,
    base: Path,
    sets: Sequence[str] = (),
    module: Sequence[str] = ("autoj_reward.cli",),
) -> None:
    """Run `autoj train` in a separate process. Raises EngineError if it fails.

    algorithm: words after `train`. module: what `python -m` runs in the place of `autoj`, and its
    first arguments.
    """
    flags = [word for override in sets for word in ("--set", override)]
    words = ["-m", *module, "train", *algorithm.split(), "--config", str(base), *flags]
    if subprocess.run([sys.executable, *words], check=False).returncode:
        raise EngineError(f"the training of {name!r} failed; its messages stand above")


async def _await_text(text: Awaitable[str]) -> str:
    return await text


def _make_parser(
    name: str, about: str | None, parts: Sequence[str], limit: str | None
) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m {name}",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", required=True, metavar="FILE", help="YAML run file")
    set_help = "override one value of the config"
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="sets", help=set_help
    )
    parser.set_defaults(parts=None, limit=None)
    if parts:
        parser.add_argument("--parts", metavar="A,B", help=f"parts to run: {', '.join(parts)}")
    if limit:
        parser.add_argument("--limit", type=int, metavar="N", help=f"{limit}, for a quick look")
    return parser
