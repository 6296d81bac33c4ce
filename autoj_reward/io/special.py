"""Readers of layouts whose rows hold a prompt or a label where no path leads.

Each takes an item with its layout and row, and fills it in. The table names them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from autoj_reward.io import checks as check
from autoj_reward.io.checks import BadField, show
from autoj_reward.io.items import (
    Item,
    add_media,
    read_before,
    read_texts,
    set_asked,
)
from autoj_reward.io.labels import as_number, label_of_numbers, read_label
from autoj_reward.io.layouts import GROUP, SINGLE
from autoj_reward.io.messages import (
    GIVEN,
    TURN_MARKS,
    Message,
    answer_of,
    ask_sides,
    prompt_of,
    read_dialogue,
    read_messages,
    read_value,
)
from autoj_reward.io.paths import find, load, numbered

ASPECTS = ("helpfulness", "correctness", "coherence", "complexity", "verbosity")
FAILED_CALL = "$ERROR$"
"""Text that FastChat writes in place of an answer."""
SCORE_LINE = re.compile(r"\s*(\d{1,3}(?:\.\d{1,4})?)[ ,]+(\d{1,3}(?:\.\d{1,4})?)\s*")
PROFBENCH_WEIGHTS = {"critical": 4, "major": 3, "minor": 2, "additional": 1}


def read_conversations(item: Item) -> None:
    """Read two conversations, which hold the prompt as far as they are the same."""
    sides = []
    for part in item.layout.paths["sides"]:
        name = part[0]
        turns = read_value(find(item.view, name), name, listed=True)
        if not isinstance(turns, list):
            raise BadField(name, f"no query with its answer: {show(turns)}")
        if len(turns) < 2:
            raise BadField(name, f"no query with its answer: {show(turns)}")
        item.names.append(name)
        sides.append(turns)
    item.prompt_name = item.names[0]
    set_asked(item, ask_sides(None, sides, item.names, read_before(item)))
    add_media(item)


def read_mtbench(item: Item) -> None:
    """Read a vote on one of two turns; the rows of the first turn hold the second one too."""
    turn = as_number(item.view.get("turn"))
    if turn not in (1, 2):
        raise BadField("turn", f"{show(turn)}: a vote is on turn 1 or 2")
    conversations = {}
    for part in item.layout.paths["sides"]:
        turns = read_value(item.view.get(part[0]), part[0], listed=True)
        conversations[part[0]] = turns[: 2 * turn] if isinstance(turns, list) else turns
    whole = item.view
    item.view = {**whole, **conversations}
    read_conversations(item)
    item.view = whole
    item.given["turn"] = turn


def read_arena55k(item: Item) -> None:
    """Read prompt and answers that are JSON lists in texts, an item for each turn."""
    columns = {}
    for name in ("prompt", "response_a", "response_b"):
        value = item.view[name]
        listed = load(value)
        columns[name] = listed if isinstance(listed, list) else [value]
    item.names = ["response_a", "response_b"]
    item.prompt_name = "prompt"
    sides: list[Any] = []
    for name in item.names:
        if len(columns[name]) != len(columns["prompt"]):
            count = len(columns["prompt"])
            raise BadField(name, f"{len(columns[name])} answers to {count} turns of the user's")
        turns: list[Message] = []
        for asked, answered in zip(columns["prompt"], columns[name], strict=True):
            turns.append({"role": "user", "content": check.require_text(asked, "prompt")})
            # null is an answer that is empty.
            answer = "" if answered is None else check.require_text(answered, name)
            turns.append({"role": "assistant", "content": answer})
        sides.append(turns)
    set_asked(item, ask_sides(None, sides, item.names, ()))
    flags = [item.view.get(f"winner_{name}") for name in ("model_a", "model_b", "tie")]
    item.given["label"] = read_label("flags", flags, "winner_model_a")


def read_webgpt(item: Item) -> None:
    """Read a pair of answers to an open question, of which the better one has the higher score."""
    read_texts(item)
    item.given["scenario"] = "open_question"
    names = [part[0] for part in item.layout.paths["scores"]]
    values = [check.number(as_number(find(item.view, name)), name) for name in names]
    item.given["label"] = label_of_numbers(values)


def read_helpsteer2(item: Item) -> None:
    """Read a response with five ratings, or with the ratings of several people."""
    read_turn_marks(item)
    values = {name: as_number(item.view.get(name)) for name in ASPECTS}
    lists = {name: value for name, value in values.items() if isinstance(value, list)}
    item.given["score_lists" if lists else "scores"] = lists or values


def read_turn_marks(item: Item) -> None:
    """Read a prompt of several turns in one text, with marks between them."""
    prompt = item.find("prompt")
    turns = read_dialogue(prompt, TURN_MARKS) if isinstance(prompt, str) else None
    read_texts(item, prompt=turns if turns and len(turns) > 1 else None)


def read_votes(item: Item) -> None:
    read_texts(item)
    votes = [item.view.get(f"annotator{n}") for n in (1, 2, 3)]
    item.given["label"] = read_label("votes", votes, "annotator1")


def read_openai_summary(item: Item) -> None:
    """Read two summaries of a post; the prompt is worded as in Eval-P."""
    post = find(item.view, "info.post")
    title = find(item.view, "info.title")
    summaries = item.view.get("summaries")
    if not (isinstance(summaries, list) and len(summaries) == 2):
        raise BadField("summaries", f"not two summaries: {show(summaries)}")
    item.prompt_name = "info.post"
    check.require_text(post, "info.post")
    title = check.require_text(title, "info.title") if title else ""
    texts = []
    for n in (0, 1):
        name = f"summaries[{n}].text"
        texts.append(check.require_text(find(item.view, name), name).strip())
        item.names.append(name)
    item.prompt = f"Summarize the following post\n\nTitle: {title}\n\nPost: {post}"
    item.responses = texts
    item.given["scenario"] = "post_summarization"


def read_oasst_tree(item: Item) -> None:
    """Read a tree of messages: every turn of the user's with the ranked answers to it.

    The first one is the item, and the others stand in its `more`.
    """
    found: list[Item] = []
    waiting: list[tuple[Any, list[Message]]] = [(item.view.get("prompt"), [])]
    while waiting:
        node, before = waiting.pop(0)
        text = node.get("text") if isinstance(node, Mapping) else None
        if not isinstance(text, str):
            continue
        role = "assistant" if node.get("role") == "assistant" else "user"
        turns = [*before, {"role": role, "content": text}]
        found_replies = node.get("replies") or []
        replies = [r for r in found_replies if isinstance(r, Mapping) and not r.get("deleted")]
        waiting += [(reply, turns) for reply in replies]
        answers = [reply for reply in replies if isinstance(reply.get("text"), str)]
        if role == "user" and answers:
            branch = replace(item, given={}, names=[], kind=GROUP)
            branch.prompt = prompt_of(turns)
            branch.responses = [reply["text"] for reply in answers]
            branch.names = [f"replies[{n}].text" for n in range(len(answers))]
            branch.given["ranks"] = [reply.get("rank") for reply in answers]
            found.append(branch)
    if not found:
        raise BadField("prompt", "no turn of the user's with an answer")
    first, *more = found
    item.prompt, item.responses, item.names = first.prompt, first.responses, first.names
    item.given = first.given
    item.more = more


def read_oasst_message(item: Item) -> None:
    """Read one message of a tree; `reader.join_rows` puts it behind those before it."""
    item.kind = SINGLE
    item.names = ["text"]
    item.responses = [check.require_text(item.view["text"], "text")]


def read_right_and_wrong(item: Item) -> None:
    """Read lists of right and of wrong responses."""
    right = item.view["chosen"]
    wrong = item.view["rejected"]
    item.given["responses"] = [*right, *wrong]
    read_texts(item)
    item.names = [f"chosen[{n}]" for n in range(len(right))]
    item.names += [f"rejected[{n}]" for n in range(len(wrong))]
    item.given["labels"] = [True] * len(right) + [False] * len(wrong)


def read_styles(item: Item) -> None:
    """Read the right and the wrong answer in several styles each."""
    read_right_and_wrong(item)
    right, wrong = item.view["chosen"], item.view["rejected"]
    item.given |= {"styles": {"chosen": right, "rejected": wrong, "pairs": len(right) * len(wrong)}}


def read_best_and_losers(item: Item) -> None:
    """Read the best of several responses, and the others."""
    losers = find(item.view, "loser_list[*].answer")
    answers = [find(item.view, "bon_best.answer"), *(losers or [])]
    item.given["responses"] = answers
    read_texts(item)
    item.given["labels"] = [True] + [False] * (len(answers) - 1)


def read_conflict_pairs(item: Item) -> None:
    """Read numbered responses with a right or wrong each, and the pairs that the row names.

    Places in the pairs count from 0.
    """
    read_texts(item)
    scores = item.scores
    places = item.view.get("sampled_conflict_pairs")
    if scores is None or not isinstance(places, list):
        return
    pairs = []
    for n, place in enumerate(places):
        where = f"sampled_conflict_pairs[{n}]"
        if not (isinstance(place, list) and len(place) == 2):
            raise BadField(where, f"not two places: {show(place)}")
        first, second = place
        if not all(type(at) is int and 0 <= at < len(scores) for at in place):
            raise BadField(where, f"{show(place)} for {len(scores)} responses")
        label = label_of_numbers((scores[first], scores[second]))
        if label is not None:
            pairs.append((first, second, label))
    item.given["pairs"] = pairs


def read_fastchat_answer(item: Item) -> None:
    """Read the answers of a model to the turns of one question."""
    item.kind = GROUP
    choices = item.view["choices"]
    for n in range(len(choices)):
        turns = find(choices[n], "turns") if isinstance(choices[n], Mapping) else None
        if not isinstance(turns, list):
            raise BadField(f"choices[{n}].turns", f"not a list: {show(turns)}")
        if FAILED_CALL in turns:
            raise BadField(f"choices[{n}].turns", f"{FAILED_CALL} marks a failed call")
        item.names.append(f"choices[{n}]")
        item.responses.append(turns)


def read_fastchat_rating(item: Item) -> None:
    """Read a rating of FastChat, of which -1 says that none was found."""
    score = as_number(item.view.get("score"))
    item.given["score"] = None if score == -1 else score


def read_fastchat_verdict(item: Item) -> None:
    """Read the verdicts of both orders, which count only if they are the same."""
    winners = {item.view.get("g1_winner"), item.view.get("g2_winner")}
    if "error" in winners:
        raise BadField("g1_winner", "error: one of the two games has no verdict")
    label = winners.pop() if len(winners) == 1 else "tie"
    item.given["label"] = read_label("winner", label, "g1_winner")


def read_judgelm(item: Item) -> None:
    """Read a pair whose two ratings are the first line of a text, before the critique."""
    read_texts(item)
    text = item.view.get("text")
    if text is None:
        return
    first_line, _, critique = check.require_text(text, "text").partition("\n")
    ratings = SCORE_LINE.fullmatch(first_line)
    if ratings is None:
        raise BadField("text", f"its first line holds no two ratings: {show(first_line)}")
    item.given["scores"] = [as_number(ratings[1]), as_number(ratings[2])]
    item.given["label"] = label_of_numbers(item.given["scores"])
    item.given["critique"] = critique


def read_arena_hard_games(item: Item) -> None:
    """Read the verdicts on a model and a baseline: A is the baseline in the first game."""
    games = item.view["games"]
    labels = []
    for n, game in enumerate(games if isinstance(games, list) else []):
        score = find(game, "score") if isinstance(game, Mapping) else None
        if score is None:
            raise BadField(f"games[{n}].score", "null: the judge gave no verdict")
        labels.append(read_label("A>B", score, f"games[{n}].score"))
    item.given["games"] = labels


def read_prm800k(item: Item) -> None:
    """Read a solution in steps with a rating each.

    A step without a chosen text, or with one by a person, is the person's text; without one the
    solution ends after the last step that was rated.
    """
    item.prompt_name = "question.problem"
    problem = find(item.view, "question.problem")
    item.prompt = check.require_text(problem, "question.problem")
    steps: list[str] = []
    ratings: list[Any] = []
    others: list[Any] = []
    labelled = find(item.view, "label.steps")
    for step in labelled if isinstance(labelled, list) else []:
        completions = (step.get("completions") if isinstance(step, Mapping) else None) or []
        chosen = step.get("chosen_completion") if completions else None
        taken = step.get("human_completion") if isinstance(step, Mapping) else None
        if type(chosen) is int and chosen < len(completions):
            taken = completions[chosen]
        elif taken is None and len(completions) == 1:
            taken = completions[0]
        others += [[c.get("text"), c.get("rating")] for c in completions if c is not taken]
        if not isinstance(taken, Mapping):
            break
        steps.append(taken.get("text") or "")
        ratings.append(taken.get("rating"))
    item.given |= {"steps": steps, "labels": ratings}
    if others:
        item.given["alternatives"] = others


def read_profbench(item: Item) -> None:
    """Read a task with the reports of several models, each in a column `..._response`."""
    names = [name for name in item.view if name.endswith("_response") and item.view[name]]
    item.given["responses"] = [item.view[name] for name in names]
    if not names:
        item.given["responses"] = None
    read_texts(item)
    if names:
        item.names = names
    rubric = []
    for entry in item.find("rubric") or []:
        if isinstance(entry, Mapping):
            word = str(entry.get("criterion_weight", "")).lower()
            weight = PROFBENCH_WEIGHTS.get(word, entry.get("criterion_weight"))
            rubric.append({"criterion": entry.get("criterion_description"), "weight": weight})
            for name in names:
                verdict = entry.get(name.replace("_response", "_fulfilment"))
                if verdict is not None:
                    rubric[-1][name.replace("_response", "_fulfilment")] = verdict
    item.given["rubric"] = rubric


def read_prbench(item: Item) -> None:
    """Read a conversation in numbered columns, of which the last answer is missing."""
    item.prompt_name = "prompt_0"
    prompts = numbered(item.view, "prompt_#") or []
    answers = numbered(item.view, "response_#") or []
    turns: list[Message] = []
    for n, prompt in enumerate(prompts):
        texts = item.view.get(f"reference_texts_{n}") or []
        heads = [f"Reference Text {k}:\n{text}\n\n" for k, text in enumerate(texts)]
        content = "".join(heads) + check.require_text(prompt, f"prompt_{n}")
        turns.append({"role": "user", "content": content})
        if n < len(answers) and answers[n] is not None:
            answer = check.require_text(answers[n], f"response_{n}")
            turns.append({"role": "assistant", "content": answer})
    last: list[Any] | None = None
    if turns and turns[-1]["role"] == "assistant":
        item.kind = SINGLE
        item.names = [f"response_{len(prompts) - 1}"]
        last = [turns.pop()["content"]]
    read_texts(item, last, prompt_of(turns))
    rubric = []
    for n, entry in enumerate(item.find("rubric") or []):
        notes = entry.get("annotations") if isinstance(entry, Mapping) else None
        if not isinstance(notes, Mapping):
            raise BadField(f"rubric[{n}].annotations", f"not a mapping: {show(notes)}")
        # The class says which weight counts; the others may be stale.
        grade = str(notes.get("weight_class", "")).replace(" ", "_")
        criterion = notes.get("criteria_description") or entry.get("title")
        rubric.append({"criterion": criterion, "weight": notes.get(f"{grade}_weight")})
        if notes.get("criteria_category"):
            rubric[-1]["criteria_category"] = notes["criteria_category"]
    item.given["rubric"] = rubric


def read_open_instruct(item: Item) -> None:
    """Read a prompt with a rubric in a JSON text, or with a reference answer in its place."""
    read_texts(item)
    rubric = item.find("rubric")
    if isinstance(rubric, list):
        items = [{"description": r} if isinstance(r, str) else r for r in rubric]
        item.given["rubric"] = [
            {"weight": 1.0, **entry} if isinstance(entry, Mapping) else entry for entry in items
        ]
        return
    truth = item.view["ground_truth"]
    if isinstance(truth, list) and len(truth) == 1:
        truth = truth[0]
    item.given["reference"] = truth if isinstance(truth, str) else None


def read_verl(item: Item) -> None:
    """Read a row of verl, whose ground truth counts only for rules."""
    read_texts(item)
    if find(item.view, "reward_model.style") == "model":
        item.given["reference"] = None


def read_nemo_gym(item: Item) -> None:
    """Read a rollout in the Responses API: messages, reasoning, calls of tools and their output."""
    name = "responses_create_params.input"
    item.prompt_name = name
    value = find(item.view, name)
    prompt = read_value(value, name, listed=False)
    if prompt is None:
        raise BadField(name, f"not a string: {show(value)}")
    before: list[Message] = []
    instructions = find(item.view, "responses_create_params.instructions")
    if isinstance(instructions, str) and instructions.strip():
        before.append({"role": "system", "content": instructions})
    item.names = ["response.output"]
    turns: list[Message] = []
    thoughts: list[str] = []
    output = find(item.view, "response.output")
    for n, part in enumerate(output if isinstance(output, list) else []):
        where = f"response.output[{n}]"
        kind = part.get("type", "message") if isinstance(part, Mapping) else None
        if kind == "message":
            turns += read_messages([{"role": "assistant", **part}], where)
        elif kind == "function_call":
            call = {"function": {key: part.get(key) for key in ("name", "arguments")}}
            turns.append({"role": "assistant", "tool_calls": [call]})
        elif kind == "function_call_output":
            turns.append({"role": "tool", "content": check.require_text(part["output"], where)})
        elif kind == "reasoning":
            for field in ("content", "summary"):
                for piece in part.get(field) or []:
                    if isinstance(piece, Mapping) and isinstance(piece.get("text"), str):
                        thoughts.append(piece["text"])
        else:
            raise BadField(where, f"an output of an unknown type: {show(kind)}")
    if not turns:
        raise BadField("response.output", "no message of the assistant's")
    set_asked(item, ask_sides(prompt, [turns], item.names, before))
    item.thoughts = ["\n\n".join(thoughts) or None]


def read_rejected_response(item: Item) -> None:
    """Read a conversation that ends with the better response, and the other one beside it.

    The other response takes the place of everything after the user's last turn.
    """
    turns = read_value(item.view["messages"], "messages", listed=True)
    if not isinstance(turns, list):
        raise BadField("messages", f"not a list of messages: {show(turns)}")
    start = len(turns)
    while start and turns[start - 1]["role"] not in GIVEN:
        start -= 1
    if start == len(turns):
        raise BadField("messages", "ends with a turn of the user's: the better response is missing")
    rejected = read_value(item.view["rejected_response"], "rejected_response", listed=False)
    if answer_of(turns[start:]) == rejected:
        raise BadField("rejected_response", "the same text as the better response")
    item.names = ["messages", "rejected_response"]
    item.prompt_name = "messages"
    sides = [turns[start:], rejected]
    set_asked(item, ask_sides(turns[:start], sides, item.names, read_before(item)))
    add_media(item)


def read_label_or_score(item: Item) -> None:
    """Read a response whose `label` is true or false, a rating, or a list of ratings."""
    read_texts(item)
    value = item.view.get("label")
    if isinstance(value, list):
        item.given["labels"] = value
    elif isinstance(value, int | float) and not isinstance(value, bool):
        item.given["score"] = value


READERS: dict[str, Callable[[Item], None]] = {
    "arena55k": read_arena55k,
    "arena_hard_games": read_arena_hard_games,
    "best_and_losers": read_best_and_losers,
    "conflict_pairs": read_conflict_pairs,
    "conversations": read_conversations,
    "fastchat_answer": read_fastchat_answer,
    "fastchat_rating": read_fastchat_rating,
    "fastchat_verdict": read_fastchat_verdict,
    "helpsteer2": read_helpsteer2,
    "judgelm": read_judgelm,
    "label_or_score": read_label_or_score,
    "mtbench": read_mtbench,
    "nemo_gym": read_nemo_gym,
    "oasst_message": read_oasst_message,
    "oasst_tree": read_oasst_tree,
    "open_instruct": read_open_instruct,
    "openai_summary": read_openai_summary,
    "prbench": read_prbench,
    "prm800k": read_prm800k,
    "profbench": read_profbench,
    "rejected_response": read_rejected_response,
    "right_and_wrong": read_right_and_wrong,
    "styles": read_styles,
    "turn_marks": read_turn_marks,
    "verl": read_verl,
    "votes": read_votes,
    "webgpt": read_webgpt,
}
"""Readers by the name that the table uses."""
