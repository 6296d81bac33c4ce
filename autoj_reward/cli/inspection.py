"""Commands that run no judge: watch, journal, models, judge new and parse."""

from __future__ import annotations

import json
import re
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from autoj_reward.cli.main import calling, command, flag

if TYPE_CHECKING:
    from autoj_reward.formats.schema import JudgeFormat
    from autoj_reward.journal import Journal
    from autoj_reward.types import JudgeInput

FILE = flag("path", metavar="FILE", help="journal file: journal.sqlite or OUTPUT.journal.sqlite")
EXPORT = flag("--output", required=True, metavar="FILE", help="output JSON lines, oldest first")
HEAD = """\
# Edit this file freely; docs/judges/formats.md explains every line. To print the judge's prompts:
# autoj preview --input {folder}/sample.jsonl --set judge.format={folder} --set judge.kind=fake
# To print what is read in the texts of the sample:
# autoj parse --input {folder}/sample.jsonl --format {folder}
#
"""
"""Comment at the top of a `format.yaml` that `autoj judge new` writes."""

watch = calling(
    "autoj_reward.watch.service:main",
    flag("path", metavar="RUN", help="output of best-of-n, score or train, or a journal file"),
    flag(
        "--port",
        type=int,
        default=8310,
        metavar="N",
        help="port of the page (8310); 0 takes any free port",
    ),
)


@command(FILE)
def stats(path: str) -> int:
    """Print the statistics of a journal as JSON."""
    with _open_journal(path) as journal:
        print(json.dumps(journal.statistics(), indent=2))
    return 0


@command(FILE, EXPORT)
def export(path: str, output: str) -> int:
    """Write every judgement of a journal as a JSON line. Memory stays bounded for any journal."""
    from autoj_reward.io.claims import judged_by
    from autoj_reward.io.files import require_apart, write_jsonl

    require_apart([path], [output])
    claim = judged_by("", Path(output), Path(output), command="autoj journal export")
    with _open_journal(path) as journal, claim:
        write_jsonl(output, journal.export())
    return 0


@command(FILE)
def compact(path: str) -> int:
    """Give the free space in a journal's file back to the disk. All records stay."""
    with _open_journal(path) as journal:
        before = Path(path).stat().st_size
        journal.compact()
    print(f"{path}: {before:,} bytes before, {Path(path).stat().st_size:,} now")
    return 0


def _open_journal(path: str) -> closing[Journal]:
    """Open a journal that exists, for use in `with`. Raises JournalError if there is no file."""
    from autoj_reward.errors import JournalError
    from autoj_reward.journal import Journal

    if not Path(path).is_file():
        raise JournalError(f"no journal at {path}: name the file that a job has written")
    return closing(Journal(Path(path)))


@command(
    flag("--prepare", action="store_true", help="build the built-in models instead"),
    flag("--path", metavar="NAME", help="print the folder of a built-in model instead"),
)
def models(prepare: bool, path: str | None) -> int:
    """List the known models. With `prepare` or `path`, build the built-in ones or one instead."""
    from autoj_reward.errors import ModelError, did_you_mean
    from autoj_reward.models import BUILT_IN, known_models

    if path is not None and path not in BUILT_IN:
        raise ModelError(
            f"{path!r} is not built by this package{did_you_mean(path, BUILT_IN)} (built in: "
            f"{', '.join(BUILT_IN)}): other models are folders already, or names on a hub"
        )
    if prepare or path is not None:
        from autoj_reward.models.built_in import build_model

        if path is not None:
            print(build_model(path))
            return 0
        for name in BUILT_IN:
            print(f"{name}: {build_model(name)}")
        return 0
    models = known_models().values()
    wide, wider = (
        max(map(len, column)) for column in zip(*((m.name, m.format) for m in models), strict=True)
    )
    for model in models:
        print(f"{model.name:{wide}}  {model.format:{wider}} {model.wrapper:8} {model.about}")
    return 0


@command(
    flag("folder", metavar="FOLDER", help="folder to create"),
    flag("--like", default="rubric", metavar="NAME", help="format to copy (rubric)"),
)
def new(folder: str, like: str) -> int:
    """Write the files of a judge format, and sample rows to try it on."""
    copy_format(Path(folder), like)
    sample = f"--input {folder}/sample.jsonl"
    print(f"wrote {folder}/format.yaml, its templates and {folder}/sample.jsonl")
    print("to see the judge's prompts, and what is read in the texts of the sample:")
    print(f"  autoj preview {sample} --set judge.format={folder} --set judge.kind=fake")
    print(f"  autoj parse {sample} --format {folder}")
    print(f"to judge with it, in a run file: judge: {{model: ..., format: {folder}}}")
    return 0


def copy_format(folder: Path, like: str) -> None:
    """Copy a format of the package to a new folder, and write `sample.jsonl` there.

    The format takes the folder's name. Raises FormatError if the folder exists, or if the package
    has no format `like`.
    """
    import shutil

    from autoj_reward.errors import FormatError, did_you_mean
    from autoj_reward.formats.sample import make_sample_rows
    from autoj_reward.formats.schema import FORMATS, format_names, load_any_format

    if folder.exists():
        raise FormatError(f"{folder} exists: name a folder that does not")
    if like not in format_names():
        raise FormatError(
            f"{like!r} is no format of the package{did_you_mean(like, format_names())} (known: "
            f"{', '.join(format_names())})"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(FORMATS / like, folder)
    path = folder / "format.yaml"
    text, name = path.read_text(encoding="utf-8"), f"name: {json.dumps(folder.name)}"
    text = re.sub(r"(?m)^name: .*$", lambda _: name, text, count=1)
    path.write_text(HEAD.format(folder=folder) + text, encoding="utf-8")
    rows = [
        json.dumps(row, ensure_ascii=False) + "\n"
        for row in make_sample_rows(load_any_format(like))
    ]
    (folder / "sample.jsonl").write_text("".join(rows), encoding="utf-8")


class JudgeText(NamedTuple):
    """An input row of `autoj parse`: the text that a judge wrote, and what it was asked."""

    line: int
    item: JudgeInput | None
    """The judge's input; None for a row without a query."""
    text: str


@command(
    flag(
        "--input",
        required=True,
        metavar="FILE",
        dest="source",
        help="rows with a judge's `text`, and what it was asked if known; - reads stdin",
    ),
    flag(
        "--format",
        default="autoj-en",
        metavar="NAME",
        dest="format_name",
        help="judge format (autoj-en)",
    ),
    flag("--pairwise", action="store_true", help="read texts without a query as comparisons"),
)
def parse(source: str, format_name: str, pairwise: bool) -> int:
    """Print what the parser reads in each judge text as a JSON line, and counts at the end.

    The text of a row with a query is read as a judge's own output: a verdict that also stands in
    the input is not believed.
    """
    from collections import Counter

    from autoj_reward.formats.schema import load_format
    from autoj_reward.io.rows import read_rows

    fmt = load_format(format_name)
    rows = read_rows(source, lambda line, value: _build_judge_text(line, value, fmt))
    outcomes: Counter[str] = Counter()
    for row in rows.rows:
        record = {"line": row.line} | _read(row, fmt, pairwise)
        outcomes[str(record["outcome"])] += 1
        print(json.dumps(record))
    for bad in rows.bad:
        outcomes["bad row"] += 1
        print(json.dumps({"line": bad.line, "outcome": "bad row", "reason": str(bad)}))
    print(json.dumps({"summary": dict(outcomes)}))
    return 0


def _build_judge_text(line: int, value: Any, fmt: JudgeFormat) -> JudgeText:
    from autoj_reward.conversation import ContextColumn
    from autoj_reward.io import checks as check
    from autoj_reward.io.candidates import prompt_of_row, read_context, response_of_row
    from autoj_reward.io.layouts import GROUP, PAIR
    from autoj_reward.io.reader import RowReader
    from autoj_reward.rubric_items import RUBRIC
    from autoj_reward.types import CHECKLIST, PAIRWISE, SINGLE, JudgeInput
    from autoj_reward.types import GROUP as GROUP_PROTOCOL

    fields = check.own_fields({"text": value} if isinstance(value, str) else value)
    text = check.text(fields, "text")
    rest = {name: field for name, field in fields.items() if name != "text"}
    if not {"query", "messages", "prompt"} & set(rest):
        return JudgeText(line, None, text)
    item = RowReader("", say=lambda line: None).read(line, rest)
    alone = CHECKLIST if CHECKLIST in fmt.protocols else SINGLE
    protocol = {PAIR: PAIRWISE, GROUP: GROUP_PROTOCOL}.get(item.kind, alone)
    needed = fmt.context(protocol)
    columns = [ContextColumn(name, name, must) for name, must in needed.items()]
    columns += [ContextColumn(RUBRIC, RUBRIC, items=True)] if protocol == CHECKLIST else []
    prompt = prompt_of_row(item)
    context, items = read_context(item.fields, columns, item)
    if not item.responses:
        check.text(rest, "response")
    responses = tuple(response_of_row(item, n) for n in range(len(item.responses)))
    return JudgeText(
        line, JudgeInput(protocol, prompt, responses, context=context, items=items), text
    )


def _read(row: JudgeText, fmt: JudgeFormat, pairwise: bool) -> dict[str, object]:
    """Return what is read in a row's text."""
    from autoj_reward.engine.base import Generation
    from autoj_reward.formats.protocols import read_slots
    from autoj_reward.formats.read import ParseFailure
    from autoj_reward.formats.render import flags
    from autoj_reward.judge.thinking import split_answer
    from autoj_reward.types import PAIRWISE, SINGLE

    fields: dict[str, object] = {}
    if row.item and (row_flags := flags(row.item, fmt)):
        fields["flags"] = list(row_flags)
    own = Generation(row.text)
    answer = split_answer(own, None, fmt.thinking.marks if fmt.thinking else None)
    fields |= {"thinking": answer.thinking} if answer.thinking else {}
    protocol = row.item.protocol if row.item else PAIRWISE if pairwise else SINGLE
    if protocol not in fmt.protocols:
        reason = f"format {fmt.name} has no {protocol} protocol"
        return {"outcome": "unparsable", "reason": reason} | fields
    record: dict[str, object] = {"outcome": "ok"}
    slots = fmt.slots_of(row.item) if row.item else fmt.slots(protocol)
    input_texts: tuple[Any, ...] = ()
    if row.item:
        own_texts = fmt.protocol(protocol).own_texts(row.item)
        input_texts = (row.item.policy_texts, row.item.given_texts, own_texts)
    found = read_slots(slots, answer.text, *input_texts)
    for name, reading in fmt.protocol(protocol).conclude_written(found).items():
        if answer.problem or isinstance(reading, ParseFailure):
            reason = answer.problem or getattr(reading, "reason", "")
            return {"outcome": "unparsable", "reason": reason} | fields
        if len(slots) == 1:
            record["start"] = answer.start + reading.start
        record[name] = reading.name if reading.value is None else reading.value
    return record | fields
