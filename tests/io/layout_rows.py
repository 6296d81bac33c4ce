"""Made rows of public layouts, each with what is read of it."""

from __future__ import annotations

from typing import Any


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def says(text: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


Q, A, B = "Name a fruit.", "A pear.", "A stone."
CHAT = [user("Hi"), says("Hello"), user("Name a tree.")]
PAIR: dict[str, Any] = {"query": Q, "responses": [A, B], "label": "A"}
SWAPPED = PAIR | {"label": "B"}
TIE = PAIR | {"label": "tie"}
ONE: dict[str, Any] = {"query": Q, "response": A}
SIDES = {"chosen": [user(Q), says(A)], "rejected": [user(Q), says(B)]}
DIALOGUES = {
    "chosen": f"\n\nHuman: {Q}\n\nAssistant: {A}",
    "rejected": f"\n\nHuman: {Q}\n\nAssistant: {B}",
}
PARTS = [{"type": "text", "text": "Name ", "image": None}, {"type": "text", "text": "a fruit."}]
PICTURE = {"type": "image", "image": "AAAA", "text": None}
STEPS = {"helpfulness": 4, "correctness": 4, "coherence": 4, "complexity": 1, "verbosity": 1}
ITEMS = [{"criterion": "Says yes.", "points": 5}, {"criterion": "Is rude.", "points": -4}]
SHOWN_ITEMS = [
    {"criterion": "Says yes.", "weight": 5},
    {"criterion": "Is rude.", "weight": -4},
]
ROLLOUT: dict[str, Any] = {
    "responses_create_params": {"input": [user(Q)], "tools": []},
    "response": {
        "output": [
            {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Fruit ..."}]},
            {"type": "message", "content": [{"type": "output_text", "text": A}]},
        ]
    },
    "reward": 0.5,
    "agent_ref": {},
}
TREE = {
    "message_tree_id": "t",
    "tree_state": "ready_for_export",
    "prompt": {
        "message_id": "m",
        "role": "prompter",
        "text": Q,
        "replies": [
            {"role": "assistant", "text": B, "rank": 1, "replies": []},
            {"role": "assistant", "text": A, "rank": 0, "replies": []},
        ],
    },
}
VOTE = {"model_a": "m", "model_b": "n", "turn": 1}

ROWS: dict[str, list[tuple[str, dict[str, Any], dict[str, Any]]]] = {
    "preferences": [
        ("ultrafeedback_binarized",
         {"prompt": Q, "prompt_id": "p", **SIDES, "messages": SIDES["chosen"], "score_chosen": 8.0,
          "score_rejected": 2.0}, PAIR | {"scores": [8.0, 2.0]}),
        ("argilla_uf_cleaned",
         {"source": "s", "prompt": Q, **SIDES, "chosen-rating": 4.5, "chosen-model": "m",
          "rejected-rating": 2.0, "rejected-model": "n"}, PAIR | {"scores": [4.5, 2.0]}),
        ("skywork_pref", {**SIDES, "source": "magpie"}, PAIR),
        ("infinity_pref", {"task_category": "x", "prompt": Q, **SIDES}, PAIR),
        ("magpie_dpo", {"uuid": "u", "instruction": Q, **SIDES, "task_category": None}, PAIR),
        ("ultrainteract_pair",
         {"id": "i", "parent_id": "p", "task": "Coding", "dataset": "d",
          "trajectory": [{"from": "user", "value": Q}], "chosen": A, "rejected": B}, PAIR),
        ("code_preference_pairs", {"input": Q, "accepted": A, "rejected": B, "ID": 1}, PAIR),
        ("nectar",
         {"prompt": f"\n\nHuman: {Q}\n\nAssistant: ",
          "answers": [{"answer": A, "model": "m", "rank": 1.0},
                      {"answer": B, "model": "n", "rank": 2.0}],
          "turns": 1, "num_responses": 2, "source": ["s"], "good_natured": True},
         PAIR | {"ranks": [1.0, 2.0]}),
        ("helpsteer2_preference",
         {"split": "train", "prompt": Q, "response_1": A, "response_2": B,
          "preference_strength": -2}, PAIR | {"margin": 2}),
        ("helpsteer3_feedback",
         {"domain": "general", "language": "english", "context": [user(Q)], "response1": A,
          "response2": B, "feedback1": ["Good."], "feedback2": []},
         {"query": Q, "responses": [A, B]}),
        ("prometheus_preference",
         {"orig_criteria": "Fruit?", "orig_instruction": Q, "orig_response_A": A,
          "orig_response_B": B, "orig_score_A": "5", "orig_score_B": "1", "orig_preference": "A",
          "orig_reference_answer": "A plum.", "instruction": "###Task", "input": "",
          "output": "x [RESULT] A"},
         PAIR | {"scores": [5, 1], "rubric": "Fruit?", "reference": "A plum."}),
        ("judgelm100k",
         {"question_body": Q, "answer1_body": B, "answer2_body": A, "text": "2 9\nThe second."},
         {"query": Q, "responses": [B, A], "label": "B", "scores": [2, 9]}),
        ("llmbar", {"instruction": Q, "output_1": A, "output_2": B, "label": 2}, SWAPPED),
        ("full_hh_rlhf",
         {"prompt": f"\n\nHuman: {Q}\n\nAssistant:", "response": f" {A}", "chosen": f" {A}",
          "rejected": f" {B}"}, PAIR),
        ("hh", DIALOGUES, PAIR),
        ("trl_pref_explicit",
         {"prompt": [user(Q)], "chosen": A, "rejected": B}, PAIR),
        ("trl_pref_explicit",
         {"prompt": [user(Q)], **SIDES, "margin": 1.5}, PAIR | {"margin": 1.5}),
        ("swift_query_pref",
         {"system": "", "query": Q, "response": A, "rejected_response": B, "history": []}, PAIR),
        ("lf_sharegpt_pref",
         {"conversations": [{"from": "system", "value": "S"}, {"from": "human", "value": Q}],
          "chosen": {"from": "gpt", "value": A}, "rejected": {"from": "gpt", "value": B}},
         {"messages": [{"role": "system", "content": "S"}, user(Q)], "responses": [A, B],
          "label": "A"}),
        ("lf_v1_dpo",
         {"chosen_messages": [{"role": "user", "content": [{"type": "text", "value": Q}]},
                              {"role": "assistant", "content": [{"type": "text", "value": A}]}],
          "rejected_messages": [{"role": "user", "content": [{"type": "text", "value": Q}]},
                                {"role": "assistant", "content": [{"type": "text", "value": B}]}]},
         PAIR),
        ("rmb_bon",
         {"bon_uid": "b", "conversation_input": [user(Q)], "bon_best": {"answer": A},
          "loser_list": [{"answer": B}]},
         {"query": Q, "responses": [A, B], "labels": [True, False]}),
        ("pair", {"query": Q, "response_1": A, "response_2": B, "label": 1}, SWAPPED),
    ],
    "votes": [
        ("arena140k",
         {"id": "i", **VOTE, "winner": "both_bad", "evaluation_session_id": "e",
          "conversation_a": [user(PARTS), says([{"type": "text", "text": A}])],
          "conversation_b": [user(PARTS), says([{"type": "text", "text": B}])],
          "full_conversation": [], "is_code": False}, PAIR | {"label": "both_bad"}),
        ("chatbot_arena33k",
         {"question_id": "q", **VOTE, "winner": "tie", "judge": "arena_user_1", "anony": True,
          "language": "English", "tstamp": 1.0, "conversation_a": [user(Q), says(A)],
          "conversation_b": [user(Q), says(B)]}, TIE),
        ("arena100k",
         {"question_id": "q", **VOTE, "winner": "model_a", "judge_hash": "h", "turn": 1,
          "conversation_a": f'[{{"role": "user", "content": "{Q}"}}, '
                            f'{{"role": "assistant", "content": "{A}"}}]',
          "conversation_b": f"[{{'role': 'user', 'content': '{Q}'}}, "
                            f"{{'role': 'assistant', 'content': '{B}'}}]"}, PAIR),
        ("mtbench",
         {"question_id": 81, **VOTE, "winner": "model_b", "judge": "expert_1",
          "conversation_a": [user(Q), says(A), user("More?"), says("No.")],
          "conversation_b": [user(Q), says(B), user("More?"), says("Yes.")]}, SWAPPED),
        ("ppe_human",
         {"question_id": "q", "prompt": Q, "response_1": A, "response_2": B, "winner": "model_b",
          **VOTE}, SWAPPED),
        ("shp",
         {"post_id": "p", "domain": "x", "history": Q, "human_ref_A": A, "human_ref_B": B,
          "labels": 1, "score_A": 9, "score_B": 2}, PAIR | {"scores": [9, 2]}),
        ("rubricbench",
         {"case_id": "c", "source": "s", "domain": "d", "instruction": Q, "response_a": A,
          "response_b": B, "label": 0, "rubrics": "Names a fruit.\nIs short."},
         PAIR | {"rubric": [{"criterion": "Names a fruit."}, {"criterion": "Is short."}]}),
        ("openrubrics_v2",
         {"instruction": Q, "response_a": A, "response_b": B, "winner": "B", "source": "s",
          "rubric": "1. Names a\n   fruit. [Hard Rule]\n2) Is short. [Principle]"},
         SWAPPED | {"rubric": [{"criterion": "Names a fruit. [Hard Rule]"},
                               {"criterion": "Is short. [Principle]"}]}),
        ("oasst_trees", TREE, {"query": Q, "responses": [B, A], "ranks": [1, 0], "label": "B"}),
    ],
    "rated": [
        ("argilla_uf_cleaned_kto",
         {"prompt": Q, "completion": A, "label": True, "model": "m", "average_rating": 4.5},
         ONE | {"label": True, "score": 4.5}),
        ("trl_unpaired", {"prompt": [user(Q)], "completion": [says(A)], "label": False},
         ONE | {"label": False}),
        ("axolotl_kto", {"question": Q, "completion": A}, ONE),
        ("kto_mix", {"completion": [user(Q), says(A)], "label": True}, ONE | {"label": True}),
        ("lf_openai_kto",
         {"messages": [{"content": Q, "role": "user"}, {"content": A, "role": "assistant"}],
          "label": False}, ONE | {"label": False}),
        ("lf_openai_kto", {"messages": [user(Q), says(A)], "label": 0.5}, ONE | {"score": 0.5}),
        ("swift_query_response",
         {"system": "S", "question": Q, "answer": A, "history": "[['Hi', 'Hello']]"},
         {"messages": [{"role": "system", "content": "S"}, *CHAT[:2], user(Q)], "response": A}),
        ("swift_sharegpt_kto",
         {"conversation": [{"human": "Hi", "assistant": "Hello"}, {"human": Q, "assistant": A}],
          "label": True},
         {"messages": [*CHAT[:2], user(Q)], "response": A, "label": True}),
        ("lf_alpaca", {"instruction": "Translate.", "input": "oui", "output": "yes"},
         {"query": "Translate.\noui", "response": "yes"}),
        ("verl_dump",
         {"input": Q, "output": A, "gts": "pear", "score": 1.0, "step": 3, "uid": "u"},
         ONE | {"score": 1.0, "reference": "pear"}),
        ("nemo_gym_rollout", ROLLOUT, ONE | {"score": 0.5}),
        ("wildbench_score",
         {"session_id": "s", "parsed_result": {"score": "6"}, "meta_data": {}, "model_test": "m",
          "score": "6", "model_output": A}, {"response": A, "score": 6}),
        ("alpacaeval_out", {"instruction": Q, "output": "", "generator": "m"},
         {"query": Q, "response": ""}),
        ("response", {"query": Q, "response": A, "rating": 4}, ONE | {"score": 4}),
    ],
    "prompts and rubrics": [
        ("rubrichub_export", {"question": Q, "id": "i", "rubrics": ITEMS},
         {"query": Q, "rubric": SHOWN_ITEMS}),
        ("profbench",
         {"task_id": "t", "domain": "d", "prompt": Q, "filepaths": [], "o3_response": A,
          "r1-0528_response": B,
          "rubrics": [{"criterion_description": "Says yes.", "criterion_weight": "Critical",
                       "criterion_type": ["x"], "o3_fulfilment": True}]},
         {"query": Q, "responses": [A, B], "rubric": [{"criterion": "Says yes.", "weight": 4}]}),
        ("arena_hard_question", {"uid": "u", "category": "hard_prompt", "prompt": Q},
         {"query": Q}),
        ("openrlhf_prompt", {"input": Q, "datasource": "math", "label": "pear"},
         {"query": Q, "reference": "pear"}),
        ("prompt_alias", {"input": [user(Q)], "label": "pear"}, {"query": Q, "reference": "pear"}),
        ("prompt_alias", {"question": Q, "response": A}, ONE),
        ("openrubrics_v1", {"instruction": Q, "rubric": "1. Is short.", "source": "s"},
         {"query": Q, "rubric": [{"criterion": "Is short."}]}),
        ("researchrubrics",
         {"prompt": [user(Q)], "rubrics": ITEMS}, {"query": Q, "rubric": SHOWN_ITEMS}),
        ("healthbench",
         {"prompt": [user(Q)], "prompt_id": "p", "rubrics": ITEMS, "response": A,
          "ideal_completions_data": {"ideal_completion": "x",
                                     "ideal_completions_ref_completions": ["y", "z"]}},
         ONE | {"rubric": SHOWN_ITEMS, "reference": "x"}),
        ("rar",
         {"question": Q, "reference_answer": "A plum.", "response": A, "rubric_count": 1,
          "rubric": [{"description": "Essential Criteria: Yes.", "title": "t", "weight": 5}]},
         ONE | {"rubric": [{"criterion": "Essential Criteria: Yes.", "weight": 5}],
                "reference": "A plum."}),
        ("verl_rl",
         {"data_source": "x", "prompt": [user(Q)], "ability": "m", "response_1": A,
          "response_2": B, "reward_model": {"style": "rule", "ground_truth": "pear"}},
         {"query": Q, "responses": [A, B], "reference": "pear"}),
        ("wildbench",
         {"session_id": "s", "conversation_input": [user(Q)], "checklist": ["Fruit?"],
          "references": {"gpt-4": ""}, "responses": [A, B]},
         {"query": Q, "responses": [A, B], "rubric": [{"criterion": "Fruit?"}]}),
        ("query", {"query": Q, "rubric": ITEMS}, {"query": Q, "rubric": SHOWN_ITEMS}),
    ],
}  # fmt: skip
"""(layout, row, what is read) by kind."""
