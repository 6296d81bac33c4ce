"""One query's part of the report: the choice, why it was made, and what it was chosen from."""

from __future__ import annotations

from autoj_reward.io.page import clip, esc, num, plural
from autoj_reward.types import Judgement, Outcome
from rollouts.best_of_n.curve import best_of_n_curve
from rollouts.best_of_n.group import GroupResult
from rollouts.best_of_n.plots import dot_plot, line_plot
from rollouts.best_of_n.sample import Shown

_LONG, _SHORT = 12_000, 500
NO_CURVE = (
    '<p class="muted">On a budget there is no best-of-N curve: those judged in full are not a '
    "random part of the candidates.</p>"
)
_VIEW = {"rating": "rating", "expected": "expected rating", "direct": "direct rating"}
_AMONG = {
    "policy_logprob": "the policy found this one the most probable of them",
    "expected_rating": "this one has the highest expected rating of them",
    "pairwise": "this one won the head-to-head comparisons among them",
    "first": "nothing else told them apart, so the first in order was taken",
}
_LEGEND = (  # {second}: the expected or the direct rating
    '<p class="legend">'
    '<span><svg viewBox="0 0 18 18"><circle class="dot" cx="9" cy="9" r="4"/></svg>rating</span>'
    '<span><svg viewBox="0 0 18 18"><path class="mean" d="M9 5l4 4l-4 4l-4 -4z"/></svg>'
    "{second}</span>"
    '<span><svg viewBox="0 0 18 18"><circle class="chosen" cx="9" cy="9" r="5"/></svg>chosen</span>'
    '<span><svg viewBox="0 0 18 18"><circle class="ring" cx="9" cy="9" r="7.5"/>'
    '<circle class="dot" cx="9" cy="9" r="4"/></svg>tied for best</span>'
    '<span><svg viewBox="0 0 18 18"><circle class="hollow" cx="9" cy="9" r="4"/></svg>'
    "no rating</span></p>"
)


def reason_in_words(group: GroupResult, view: str) -> str:
    """Why this candidate was chosen, as a sentence in HTML."""
    rule, tied = group.selection.rule, len(group.selection.tied)
    name = _VIEW.get(view, view)
    if rule == "all_failed" and group.standings:
        return (
            "No candidate that was judged in full got a rating, so this choice says nothing about "
            "quality."
        )
    if rule == "all_failed":
        return "Every judgement failed, so this choice says nothing about quality."
    if rule == "only":
        alone = len(group.candidates) == 1
        return f"It is the only candidate{'' if alone else ' that was rated'}."
    if rule == view:
        among = " of those judged in full" * bool(group.standings)
        return f"It has the highest {name}{among}, and no other candidate shares it."
    if rule in _AMONG and tied > 1:
        best = num(group.chosen.view(view))
        return f"{tied} candidates share the best {name}, {best}; {_AMONG[rule]}."
    return f"Decided by the rule {esc(rule)}."


def query_section(shown: Shown, view: str) -> str:
    """The section of one query; long texts are cut, which the page says."""
    number, group = shown.number, shown.group
    chosen, index = group.chosen, group.selection.index
    name = _VIEW.get(view, view)
    curve = NO_CURVE
    if group.spending is None:
        curve = line_plot(best_of_n_curve(group.values(view)), f"best {name}", (350, 240))
    abandoned = sum(j.outcome is Outcome.ABANDONED for j in group.judgements)
    failed = sum(not judgement.ok for judgement in group.judgements) - abandoned
    size = (
        plural(len(group.candidates), "candidate")
        + f", {failed} without a rating" * bool(failed)
        + f", {abandoned} abandoned" * bool(abandoned)
    )
    direct = f"<span>direct rating <b>{num(chosen.view('direct'))}</b></span>" * _shown(group)
    outcome = "" if chosen.ok else f"<span>outcome <b>{_outcome(chosen)}</b></span>"
    return (
        f'<article class="card query" id="q{number}"><header><h3>Query {number}</h3>'
        f'<span class="muted small">line {group.row.line} · {size}'
        f"{' · ' * bool(shown.why)}{shown.why}</span></header>"
        f"<h4>Query</h4>{_text(group.row.query)}"
        f"{''.join(f'<h4>{esc(n)}</h4>{_text(t)}' for n, t in group.row.context.items())}"
        f"<h4>Chosen response · candidate {index}</h4>"
        f"{_text(group.candidates[index].response, 'picked')}"
        f'<div class="facts"><span>rating <b>{num(chosen.view("rating"))}</b></span>'
        f"<span>expected rating <b>{num(chosen.view('expected'))}</b></span>{direct}{outcome}"
        f"{_notes(chosen)}</div>"
        f'<p class="why">{reason_in_words(group, view)}</p>'
        f"<h4>Critique</h4>{_text(chosen.critique)}"
        f'<div class="plots"><div><h3>Ratings of all candidates</h3><div class="wide">'
        f"{dot_plot(group, view, (600, 240))}</div>{_legend(view)}</div>"
        f"<div><h3>Best-of-N</h3>{curve}</div></div>"
        f"<details><summary>All candidates</summary>"
        f"{_candidates(group)}</details></article>"
    )


def _legend(view: str) -> str:
    return _LEGEND.replace("{second}", _VIEW["direct" if view == "direct" else "expected"])


def _shown(group: GroupResult) -> bool:
    """Whether direct ratings say anything beside the expected ones."""
    return any(j.view("direct") != j.view("expected") for j in group.judgements) and any(
        j.view("direct") is not None for j in group.judgements
    )


def _text(text: str, kind: str = "") -> str:
    if not text.strip():
        return (
            '<div class="text empty">empty</div>'
            if not text
            else f'<div class="text empty">only white space: {esc(repr(text[:80]))}</div>'
        )
    return f'<div class="text {kind}" dir="auto">{clip(text, _LONG)}</div>'


def _outcome(judgement: Judgement) -> str:
    return esc(judgement.outcome.value) + (
        f": {clip(judgement.reason, _SHORT)}" * bool(judgement.reason)
    )


def _notes(judgement: Judgement) -> str:
    notes = ["forced: the judge did not write a rating itself"] * judgement.forced
    notes += [f"flag: {flag}" for flag in judgement.flags]
    return "".join(f'<span class="muted">{esc(note)}</span>' for note in notes)


def _standing(group: GroupResult, index: int) -> tuple[str, ...]:
    if not group.standings:
        return ()
    own = group.standings[index]
    return num(own.cheap), esc("\n".join([own.fate.value.replace("_", " "), own.why]).strip())


def _candidates(group: GroupResult) -> str:
    direct = _shown(group)
    head = (
        *("#", "rating", "expected"),
        *("direct",) * direct,
        *("cheap", "fate") * bool(group.standings),
        *("log-prob.", "outcome", "response", "critique or reason"),
    )
    top = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    rows = []
    for i, (candidate, j) in enumerate(zip(group.candidates, group.judgements, strict=True)):
        mark = f'<span class="row">{i} ✓</span>' if i == group.selection.index else str(i)
        outcome = "\n".join(
            [esc(j.outcome.value), *["forced"] * j.forced, *(clip(f, 60) for f in j.flags)]
        )
        cells = (
            mark,
            num(j.view("rating")),
            num(j.view("expected")),
            *(num(j.view("direct")),) * direct,
            *_standing(group, i),
            num(candidate.policy_logprob),
            outcome,
            clip(candidate.response, _SHORT),
            clip(j.critique or j.reason, _SHORT),
        )
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    body = f"<thead><tr>{top}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return f'<div class="scroll"><table class="all">{body}</table></div>'
