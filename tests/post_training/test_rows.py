"""What is trained are the assistant's tokens with the end of the turn, whatever the chat template."""

from __future__ import annotations

import json

import pytest

from gateway.small_tokenizer import (
    CHATML,
    CHATML_TOOLS,
    GEMMA,
    LLAMA3,
    MISTRAL,
    NO_END_OF_TURN,
    THINKING,
    small_tokenizer,
)
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.gateway.render.renderer import ChatRenderer
from mini_agentic_rl.post_training.rows import conversation_tree, preference_rows, sft_rows, unpaired_rows
from mini_agentic_rl.tokens import pack
from post_training.samples import pairs, verdicts

TURNS = [
    {"role": "user", "content": "What is the weather?"},
    {"role": "assistant", "content": "I think the sum is"},
    {"role": "user", "content": "How many apples?"},
    {"role": "assistant", "content": "The answer"},
]
CALLING = [
    {"role": "user", "content": "What is 12+30?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "calculate", "arguments": '{"expression": "12+30"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "42 from the tool"},
    {"role": "assistant", "content": "The answer"},
]
TOOLS = [{"type": "function", "function": {"name": "calculate", "parameters": {"type": "object", "properties": {}}}}]


def rendered(template: str | None, eos: str = "<|im_end|>", **options):
    tokenizer = small_tokenizer(template, eos, **options)
    return tokenizer, ChatRenderer(tokenizer)


def trained_texts(tokenizer, row) -> list[str]:
    """Return the texts of the trained answers."""
    return [tokenizer.decode(record.output_ids, skip_special_tokens=False) for record in row]


def whole_text(tokenizer, row) -> str:
    """Return the text of a conversation up to the end of its last trained answer."""
    return tokenizer.decode([*row[-1].prompt_ids, *row[-1].output_ids], skip_special_tokens=False)


@pytest.mark.parametrize(
    ("template", "end", "space"),
    [(CHATML, "<|im_end|>", ""), (CHATML_TOOLS, "<|im_end|>", ""), (LLAMA3, "<|eot_id|>", ""),
     (GEMMA, "<end_of_turn>", ""), (None, "<|im_end|>", ""), (MISTRAL, "</s>", " ")],
)  # fmt: skip
def test_the_assistants_turns_and_their_ends_are_trained_and_nothing_else(template, end, space):
    tokenizer, renderer = rendered(template, end)
    (row,) = sft_rows(renderer, [{"messages": TURNS}], 512).rows
    assert trained_texts(tokenizer, row) == [f"{space}I think the sum is{end}", f"{space}The answer{end}"]
    assert space or renderer.template.apply(TURNS, None, False).startswith(whole_text(tokenizer, row))
    assert conversation_tree([row]).token_count == row[-1].prompt_ids.size + row[-1].output_ids.size


def test_a_template_without_an_end_of_turn_gets_the_end_token():
    tokenizer, renderer = rendered(NO_END_OF_TURN)
    (row,) = sft_rows(renderer, [{"messages": TURNS[:2]}], 512).rows
    assert [text.strip() for text in trained_texts(tokenizer, row)] == ["I think the sum is<|im_end|>"]


@pytest.mark.parametrize("template", [CHATML, CHATML_TOOLS])
def test_tool_calls_are_trained_and_results_are_not(template):
    tokenizer, renderer = rendered(template)
    (row,) = sft_rows(renderer, [{"messages": CALLING, "tools": TOOLS}], 512).rows
    call, answer = trained_texts(tokenizer, row)
    assert '"expression": "12+30"' in call
    assert call.endswith("<|im_end|>")
    assert answer == "The answer<|im_end|>"
    assert "42 from the tool" in whole_text(tokenizer, row)


def test_where_the_template_rewrites_history_each_answer_is_trained_once_behind_the_prompt_it_answers():
    tokenizer, renderer = rendered(THINKING, added=("<think>", "</think>"))
    turns = [dict(turn) for turn in TURNS]
    turns[1]["content"] = "<think>\nlet me\n</think>\n\nI think the sum is"
    (row,) = sft_rows(renderer, [{"messages": turns}], 512).rows
    first = "<think>\nlet me\n</think>\n\nI think the sum is<|im_end|>"
    assert trained_texts(tokenizer, row) == [first, "The answer<|im_end|>"]
    assert "let me" not in whole_text(tokenizer, row)
    assert pack([conversation_tree([row])]).term_count == sum(record.output_ids.size for record in row)


def test_a_long_conversation_is_cut_and_not_trained_to_end_there():
    _, renderer = rendered(CHATML)
    whole = sft_rows(renderer, [{"messages": TURNS}], 512)
    found = sft_rows(renderer, [{"messages": TURNS}], whole.tokens - 1)
    assert found.shortened == 1
    assert found.tokens == whole.tokens - 1
    last, cut = (rows.rows[0][-1].output_ids.tolist() for rows in (whole, found))
    assert cut == last[:-1]
    assert last[-1] == renderer.eos_ids[0]
    prompt = len(renderer.render(TURNS[:1]))
    found = sft_rows(renderer, [{"messages": TURNS}], prompt)
    assert (found.rows, dict(found.dropped)) == ([], {"no answer within `max_length`": 1})


def test_a_pair_is_a_prompt_and_two_answers_with_their_ends():
    tokenizer, renderer = rendered(CHATML)
    (row,) = preference_rows(renderer, pairs(1), 512).rows
    assert tokenizer.decode(row["prompt_ids"]).endswith("Say apples 0<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer.decode(row["chosen_ids"]) == "The apples<|im_end|>"
    assert tokenizer.decode(row["rejected_ids"]) == "What weather<|im_end|>"
    plain = {"prompt": "Say apples 0", "chosen": "The apples", "rejected": "What weather"}
    assert preference_rows(renderer, [plain], 512).rows == [row]


def test_pairs_that_are_the_same_or_too_long_are_left_out_and_counted():
    _, renderer = rendered(CHATML)
    same = {**pairs(1)[0], "rejected": pairs(1)[0]["chosen"]}
    found = preference_rows(renderer, [*pairs(2), same], 512)
    assert (len(found.rows), dict(found.dropped)) == (2, {"chosen and rejected are the same": 1})
    assert dict(preference_rows(renderer, pairs(2), 10).dropped) == {"longer than `max_length`": 2}
    assert dict(unpaired_rows(renderer, verdicts(2), 10).dropped) == {"longer than `max_length`": 2}


@pytest.mark.parametrize(
    ("example", "says"),
    [
        ({"prompt": "a", "chosen": "b"}, "example 0 cannot be read: 'rejected' is missing"),
        ({"prompt": "a", "chosen": [], "rejected": "b"}, "chosen has to be one assistant message"),
        ({"prompt": [{"role": "nobody", "content": "a"}], "chosen": "b", "rejected": "c"}, "unknown role"),
    ],
)
def test_an_example_of_another_form_is_named(example, says):
    _, renderer = rendered(CHATML)
    with pytest.raises(UserError, match=says):
        preference_rows(renderer, [example], 512)


@pytest.mark.parametrize(("mark", "masked"), [({"weight": 0}, 1), ({"train": "false"}, 3)])
def test_a_turn_that_is_marked_as_not_trained_is_read_and_not_trained(mark, masked):
    tokenizer, renderer = rendered(CHATML)
    turns = [{**turn, **mark} if at == masked else turn for at, turn in enumerate(TURNS)]
    (row,) = sft_rows(renderer, [{"messages": turns}], 512).rows
    assert trained_texts(tokenizer, row) == [f"{TURNS[4 - masked]['content']}<|im_end|>"]
    assert (masked == 3) or TURNS[1]["content"] in whole_text(tokenizer, row)
    with pytest.raises(UserError, match="example 0 cannot be read: every answer is marked as not to be trained"):
        sft_rows(renderer, [{"messages": [TURNS[0], {**TURNS[1], **mark}]}], 512)


def test_rows_given_by_hand_are_read_as_those_of_files_are():
    tokenizer, renderer = rendered(CHATML_TOOLS)
    (wanted,) = sft_rows(renderer, [{"messages": CALLING, "tools": TOOLS}], 512).rows
    older = [dict(message) for message in CALLING]
    older[1] = {"role": "assistant", "content": None, "function_call": CALLING[1]["tool_calls"][0]["function"]}
    older[2] = {"role": "function", "name": "calculate", "content": CALLING[2]["content"]}
    texts = {"messages": json.dumps(CALLING), "tools": json.dumps(TOOLS)}
    for same in ({"messages": older, "tools": TOOLS}, texts):
        (row,) = sft_rows(renderer, [same], 512).rows
        assert trained_texts(tokenizer, row) == trained_texts(tokenizer, wanted)
        assert whole_text(tokenizer, row) == whole_text(tokenizer, wanted)
    labelled = [{"prompt": "Say", "completion": "The apples", "label": label} for label in ("True", "0")]
    assert [row["label"] for row in unpaired_rows(renderer, labelled, 512).rows] == [True, False]
    with pytest.raises(UserError, match="label is neither true nor false: 'maybe'"):
        unpaired_rows(renderer, [{**labelled[0], "label": "maybe"}], 512)
