"""Examples that a judge learns from: token trees, and the slots that the losses read from logits.

`rated`: the judgement's own tokens (cross entropy, as in the paper), and the rating read at the
slot after the judgement and at a slot right after the prompt. `direct`: the latter alone.
`compared`: the verdict of a pair in one order. `preferred`: the expected ratings of two responses
against the human label of the pair. `ranked`: those of a group against their graded scores. Slots
are read as the engine reads them (`autoj_reward.engine.labels`), so a rating is trained as the
distribution that is served.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from autoj_reward.data.labelled import Compared, Rated
from autoj_reward.engine.base import Generation, Prepared
from autoj_reward.engine.labels import slot_tokens
from autoj_reward.errors import InputRejected
from autoj_reward.formats.read import WrittenVerdict
from autoj_reward.formats.render import render
from autoj_reward.formats.schema import JudgeFormat, parse_comparison, parse_rating
from autoj_reward.formats.tokens import PromptTokenizer
from autoj_reward.training.groups import Ranked
from autoj_reward.training.judge.recipe import LossConfig
from autoj_reward.types import JudgeInput, Verdict

SENTENCE = re.compile(r"(?<=[.!?])(?<!\b\d\.)\s+|\n+")
Logits = Callable[[list[int]], Tensor]
"""Maps nodes to the logits after each: float [nodes, vocabulary]."""


@dataclass(slots=True)
class TokenTree:
    """Token tree: several continuations of one prompt, computed as one sequence.

    A critique, the rating slot right after the prompt and the slot after the critique all continue
    the same prompt. Their tokens form a tree: each token sees its ancestors and nothing else, and
    its position is its depth, so the model computes exactly what it would for each path alone.
    """

    ids: list[int] = field(default_factory=list)
    """Tokens in the order they were added."""
    parents: list[int] = field(default_factory=list)
    """parents[i] < i is the token before i, -1 for none."""
    depths: list[int] = field(default_factory=list)
    _children: dict[tuple[int, int], int] = field(default_factory=dict)

    def add(self, path: Sequence[int]) -> list[int]:
        """Add a path from the root and return its nodes; a shared prefix is not repeated."""
        nodes = []
        parent = -1
        for depth, token in enumerate(path):
            node = self._children.get((parent, token))
            if node is None:
                node = len(self.ids)
                self._children[parent, token] = node
                self.ids.append(token)
                self.parents.append(parent)
                self.depths.append(depth)
            nodes.append(node)
            parent = node
        return nodes

    @property
    def linear(self) -> bool:
        """Whether the tree is one path, so that a plain causal mask does."""
        return all(parent == node - 1 for node, parent in enumerate(self.parents))

    def visible(self, size: int) -> Tensor:
        """Return bool [size, size]: row i marks the tokens that i sees, itself included.

        Rows of padding beyond the tree see themselves alone.
        """
        rows = torch.eye(size, dtype=torch.bool)
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                rows[node] |= rows[parent]
        return rows


def batch(trees: Sequence[TokenTree], pad: int) -> dict[str, Tensor]:
    """Return model inputs of the trees, right-padded to int64 [trees, longest].

    The mask is bool [trees, 1, longest, longest] if any tree branches, else int64
    [trees, longest], which every attention implementation takes.
    """
    size = max(len(tree.ids) for tree in trees)
    ids = torch.full((len(trees), size), pad)
    positions = torch.zeros(len(trees), size, dtype=torch.long)
    lengths = torch.zeros(len(trees), size, dtype=torch.long)
    for row, tree in enumerate(trees):
        n = len(tree.ids)
        ids[row, :n] = torch.tensor(tree.ids)
        positions[row, :n] = torch.tensor(tree.depths)
        lengths[row, :n] = 1
    mask = lengths
    if not all(tree.linear for tree in trees):
        mask = torch.stack([tree.visible(size) for tree in trees])[:, None]
    return {"input_ids": ids, "position_ids": positions, "attention_mask": mask}


@dataclass(frozen=True, slots=True)
class TreeSlot:
    """A verdict slot in a tree."""

    labels: tuple[tuple[int, ...], ...]
    """Token ids of each label after the slot."""
    nodes: dict[tuple[int, ...], int]
    """For every proper prefix of a label, the node whose next-token distribution is read there."""

    def log_probs(self, logits: Logits) -> Tensor:
        """Return the natural log-probability of each label, float [labels]; not renormalised."""
        node_log_probs = logits(list(self.nodes.values())).float().log_softmax(-1)
        by_prefix = dict(zip(self.nodes, node_log_probs, strict=True))
        label_log_probs = []
        for ids in self.labels:
            log_p = sum(by_prefix[ids[:n]][ids[n]] for n in range(len(ids)))
            if ids in by_prefix:  # a label inside longer ones keeps what they leave
                longer = {i[len(ids)] for i in self.labels if i[: len(ids)] == ids != i}
                remaining = 1 - by_prefix[ids][sorted(longer)].exp().sum()
                log_p = log_p + remaining.clamp_min(1e-6).log()
            label_log_probs.append(log_p)
        return torch.stack(label_log_probs)


@dataclass(slots=True)
class Tree:
    """One prompt with its continuations."""

    tokens: TokenTree
    text: list[tuple[int, int]] = field(default_factory=list)
    """(node, next token) pairs of the output, for the cross entropy."""
    after: TreeSlot | None = None
    direct: TreeSlot | None = None
    verdict: TreeSlot | None = None

    @property
    def logit_nodes(self) -> set[int]:
        """Nodes whose logits the losses read."""
        slots = [slot for slot in (self.after, self.direct, self.verdict) if slot]
        return {n for n, _ in self.text} | {n for slot in slots for n in slot.nodes.values()}


@dataclass(frozen=True, slots=True)
class Example:
    """Training example: token trees with their targets."""

    part: str
    """`rated`, `direct`, `compared`, `preferred` (with two trees) or `ranked`."""
    source: str
    line: int
    trees: tuple[Tree, ...]
    target: float = 0.0
    """The reference rating, the index of the verdict among the format's, or 1 / 0.5 / 0 for the
    first response being better, tied or worse."""
    scores: tuple[float, ...] = ()
    """Graded scores of the trees of a ranked example."""

    @property
    def tokens(self) -> int:
        """Number of tokens of the longest path in any tree."""
        return max(max(tree.tokens.depths) + 1 for tree in self.trees)


class ExampleBuilder:
    """Builder of examples from rows, with the tokenizer and format of the served judge."""

    def __init__(
        self,
        tokens: PromptTokenizer,
        fmt: JudgeFormat,
        losses: LossConfig,
        brief: int | None = None,
    ) -> None:
        self.tokens = tokens
        self.format = fmt
        self.losses = losses
        self.brief = brief
        self.scale = torch.tensor([fmt.scale.value(label) for label in fmt.scale.labels])

    def rated(self, row: Rated) -> Example:
        """Make the example of a rated response, with its judgement where the row has one."""
        tree, prepared = self._make_tree(JudgeInput("single", row.query, (row.response,)))
        if row.judgement:
            text = row.judgement
            parsed = _parse_written_rating(text, self.format)
            if self.brief:
                text = (
                    shorten(text[: parsed.opened], self.brief, self.count) + text[parsed.opened :]
                )
                parsed = _parse_written_rating(text, self.format)
            output = self._add_output(tree, prepared, text)
            opening = text[parsed.opened : parsed.start]
            if self.losses.slot_after:
                tree.after = self._add_rating_slot(tree, prepared, output, parsed.opened, opening)
        if self.losses.slot_direct:
            tree.direct = self._add_direct_slot(tree, prepared)
        return Example("rated", row.source, row.line, (tree,), row.rating)

    def direct(self, row: Rated) -> Example:
        """Make the example of a rated response at the slot right after the prompt alone."""
        tree, prepared = self._make_tree(JudgeInput("single", row.query, (row.response,)))
        tree.direct = self._add_direct_slot(tree, prepared)
        return Example("direct", row.source, row.line, (tree,), row.rating)

    def compared(self, row: Compared) -> Example:
        """Make the example of a pair in the order of the row.

        Without a judgement the output is the decision only, in the words that the format uses to
        force one.
        """
        fmt = self.format.pairwise
        assert fmt is not None  # the reader refused a format without
        tree, prepared = self._make_tree(JudgeInput("pairwise", row.query, row.responses))
        canonical = {verdict: label for label, verdict in fmt.canonical.items()}
        if row.label not in canonical:
            raise InputRejected(
                f"the label is {row.label}, for which format {self.format.name} has no word"
            )
        text = row.judgement or fmt.force.lstrip() + canonical[row.label]
        output = self._add_output(tree, prepared, text)
        if self.losses.verdict:
            parsed = parse_comparison(text, self.format)
            assert isinstance(parsed, WrittenVerdict)  # the reader refused others
            tree.verdict = self._add_slot(
                tree,
                prepared,
                output,
                parsed.opened,
                text[parsed.opened : parsed.start],
                list(canonical.values()),
            )
        target = list(canonical).index(row.label)
        return Example("compared", row.source, row.line, (tree,), target)

    def preferred(self, row: Compared) -> Example:
        """Make the example of a pair whose responses are each rated alone, at the direct slot."""
        target = {Verdict.FIRST: 1.0, Verdict.TIE: 0.5}.get(row.label, 0.0)
        trees = self._make_lone_trees(row.query, row.responses)
        return Example("preferred", row.source, row.line, trees, target)

    def ranked(self, row: Ranked) -> Example:
        """Make the example of a group whose responses are each rated alone, at the direct slot."""
        trees = self._make_lone_trees(row.query, row.responses)
        return Example("ranked", row.source, row.line, trees, scores=row.scores)

    def _make_lone_trees(self, query: str, responses: Sequence[str]) -> tuple[Tree, ...]:
        trees = []
        for response in responses:
            tree, prepared = self._make_tree(JudgeInput("single", query, (response,)))
            tree.direct = self._add_direct_slot(tree, prepared)
            trees.append(tree)
        return tuple(trees)

    def count(self, text: str) -> int:
        """Count the tokens of a text."""
        return self.tokens.count(text)

    def _make_tree(self, judge_input: JudgeInput) -> tuple[Tree, Prepared]:
        ids = self.tokens.ids(render(judge_input, self.format))
        tree = TokenTree()
        tree.add(ids)
        return Tree(tree), Prepared((), tuple(ids))

    def _add_output(self, tree: Tree, prepared: Prepared, text: str) -> Generation:
        """Add the output and its end of turn to the tree and return the output as a generation."""
        ids = self.tokens.continuation(text)
        end = self.tokens.tokenizer.eos_token_id
        nodes = tree.tokens.add([*prepared.ids, *ids])[len(prepared.ids) - 1 :]
        tree.text = list(zip(nodes, [*ids, end], strict=True))
        return Generation(text, tuple(ids))

    def _add_direct_slot(self, tree: Tree, prepared: Prepared) -> TreeSlot:
        force = self.format.protocol("single").force.lstrip()
        return self._add_rating_slot(tree, prepared, Generation(""), 0, force)

    def _add_rating_slot(
        self, tree: Tree, prepared: Prepared, output: Generation, keep: int, opening: str
    ) -> TreeSlot:
        return self._add_slot(tree, prepared, output, keep, opening, self.format.scale.labels)

    def _add_slot(
        self,
        tree: Tree,
        prepared: Prepared,
        output: Generation,
        keep: int,
        opening: str,
        labels: Sequence[str],
    ) -> TreeSlot:
        context, label_tokens = slot_tokens(self.tokens, prepared, output, keep, opening, labels)
        prefixes = {ids[:n] for ids in label_tokens.values() for n in range(len(ids))}
        nodes = {p: tree.tokens.add([*context, *p])[-1] for p in sorted(prefixes)}
        return TreeSlot(tuple(label_tokens.values()), nodes)


def shorten(critique: str, limit: int, count: Callable[[str], int]) -> str:
    """Return a critique with its last sentence and as many first ones as fit in `limit` tokens.

    A critique that fits is returned unchanged. The last sentence is always kept, even if it is too
    long. Trailing white space is kept.
    """
    body = critique.rstrip()
    if count(body) <= limit:
        return critique
    *sentences, last = SENTENCE.split(body)
    short_text = last
    for n in range(1, len(sentences)):
        longer = SENTENCE.split(body, maxsplit=n)[-1]
        start = body[: len(body) - len(longer)]
        if count(start + last) > limit:
            break
        short_text = start + last
    return short_text + critique[len(body) :]


def _parse_written_rating(text: str, fmt: JudgeFormat) -> WrittenVerdict:
    parsed = parse_rating(text, fmt)
    assert isinstance(parsed, WrittenVerdict)  # the reader refused others
    return parsed
