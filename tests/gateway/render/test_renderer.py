"""Rendering and continuing conversations over chat templates in the style of the main families."""

from __future__ import annotations

import pytest
from transformers import AutoTokenizer

from mini_agentic_rl.commands import TrainConfig, train_job
from mini_agentic_rl.gateway import ChatRenderer, ServedPolicy, keep_tool_format, load_tokenizer, save_kept_tokenizer
from mini_agentic_rl.gateway.render.messages import plain_messages
from mini_agentic_rl.http import BadRequestError

from ..samples import CALCULATOR, call_message, result_message
from ..small_tokenizer import (
    CHATML_TOOLS,
    EMPTY_THINKING_LAST,
    GEMMA,
    NO_END_OF_TURN,
    THINKING,
    small_tokenizer,
)
from .families import FAMILIES


def three_turns() -> list[dict]:
    """A conversation with three assistant turns, one of them a tool call."""
    return [
        {"role": "system", "content": "Be terse."},
        {"role": "user", "content": "12+30?"},
        call_message(),
        result_message(),
        {"role": "assistant", "content": "The answer is 42."},
        {"role": "user", "content": "Sure?"},
        {"role": "assistant", "content": "Yes."},
    ]


def text_of(renderer, ids):
    return renderer.tokenizer.decode(list(ids), skip_special_tokens=False)


def test_the_end_of_turn_is_found_where_it_is_not_the_eos_token():
    renderer = ChatRenderer(small_tokenizer(GEMMA, eos="</s>"), extra_eos_ids=[5])
    tokens = renderer.tokenizer.convert_ids_to_tokens(list(renderer.eos_ids))
    assert tokens == ["<end_of_turn>", "</s>", "<bos>"]


@pytest.mark.parametrize("name", ["gemma 2", "mistral tekken"])
def test_where_roles_must_alternate_neighbouring_answers_become_one_and_fork(name):
    renderer = ChatRenderer(FAMILIES[name].tokenizer())
    asked = {"role": "user", "content": "12+30?"}
    answers = [{"role": "assistant", "content": text} for text in ("Let me see.", "It is 42.")]
    joined = {"role": "assistant", "content": "Let me see.\nIt is 42."}
    assert renderer.render([asked, *answers, asked]) == renderer.render([asked, joined, asked])
    assert renderer.continuation([asked, answers[0]], [answers[1], asked]) is None
    for record, answer in zip(renderer.conversation_to_records([asked, *answers]), answers, strict=True):
        assert answer["content"] in text_of(renderer, record.output_ids)


def two_calls(*results):
    """An answer that calls c0 and c1, and results in the given order."""
    calls = [
        {"id": f"c{number}", "type": "function", "function": {"name": name, "arguments": {"expression": "1"}}}
        for number, name in enumerate(("porto", "rome"))
    ]
    return [
        {"role": "user", "content": "Porto, Rome?"},
        {"role": "assistant", "content": "", "tool_calls": calls},
        *results,
        {"role": "assistant", "content": "Rome."},
    ]


@pytest.mark.parametrize("key", ["tool_call_id", "name"])
@pytest.mark.parametrize("name", ["qwen 3.5", "mistral tekken", "gemma 2"])
def test_results_come_in_the_order_of_the_calls_in_prompts_and_in_data(name, key):
    def result(number, place):
        return {"role": "tool", "content": f"{place} is sunny", key: place if key == "name" else f"c{number}"}

    first, second = result(0, "porto"), result(1, "rome")
    between = {"role": "user", "content": "Quick!"}
    renderer = ChatRenderer(FAMILIES[name].tokenizer())
    for given in ([second, first], [second, between, first]):
        ordered = [{**second, **first}, *given[1:-1], {**first, **second}]
        expected, messages = two_calls(*ordered), two_calls(*given)
        assert renderer.render(messages) == renderer.render(expected)
        assert renderer.continuation(messages[:2], messages[2:-1]) == renderer.continuation(
            expected[:2], expected[2:-1]
        )
        for record, expected_record in zip(*map(renderer.conversation_to_records, (messages, expected)), strict=True):
            assert record.prompt_ids.tolist() == expected_record.prompt_ids.tolist()


def test_results_that_name_no_call_stay_where_they_are():
    results = [
        {"role": "tool", "content": text, "tool_call_id": id_} for text, id_ in (("b", "c1"), ("?", "x"), ("a", "c0"))
    ]
    assert [message["content"] for message in plain_messages(two_calls(*results))[2:-1]] == ["a", "?", "b"]
    odd = [{**result, "tool_call_id": [7]} for result in results]
    assert [message["content"] for message in plain_messages(two_calls(*odd))[2:-1]] == ["b", "?", "a"]


def test_a_form_of_calls_that_is_not_known_is_told_once_and_results_are_left_to_the_template(caplog):
    tokenizer = FAMILIES["glm 4"].tokenizer()
    tokenizer.name_or_path = "some/model-of-its-own"
    for _ in range(2):
        renderer = ChatRenderer(tokenizer)
    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["some/model-of-its-own"]
    text = text_of(renderer, renderer.render(three_turns(), [CALCULATOR]))
    assert "<|observation|>\n42<|assistant|>" in text
    assert '<tool_call>\n{"name": "calculate"' in text


def test_arguments_that_are_no_json_stay_the_text_that_they_are():
    renderer = ChatRenderer(FAMILIES["glm 4.5"].tokenizer())
    messages = [{"role": "user", "content": "12+30?"}, call_message("{broken"), result_message()]
    assert "{broken" in text_of(renderer, renderer.render(messages, [CALCULATOR]))


def test_an_empty_thought_shown_only_in_the_last_answer_is_no_divergence():
    renderer = ChatRenderer(small_tokenizer(EMPTY_THINKING_LAST))
    messages = three_turns()
    added = renderer.continuation(messages[:5], messages[5:6], [CALCULATOR])
    assert text_of(renderer, added) == "\n<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\n"


def test_a_template_without_an_end_of_turn_token_continues_after_the_answers_text():
    renderer = ChatRenderer(small_tokenizer(NO_END_OF_TURN, "</s>"))
    assert renderer.end_of_turn_id is None
    messages = three_turns()
    added = renderer.continuation(messages[:5], messages[5:6], [CALCULATOR])
    assert text_of(renderer, added) == "user: Sure?\n\nassistant:"


def test_an_answer_that_spells_the_end_of_turn_token_continues_as_any_other():
    renderer = ChatRenderer(small_tokenizer())
    asked, more = {"role": "user", "content": "hi"}, [{"role": "user", "content": "Sure?"}]
    spelled = renderer.continuation([asked, {"role": "assistant", "content": "a<|im_end|>b"}], more)
    assert spelled == renderer.continuation([asked, {"role": "assistant", "content": "ab"}], more)


def test_written_conversations_with_dropped_thinking_are_rendered_anew():
    renderer = ChatRenderer(small_tokenizer(THINKING))
    messages = [
        {"role": "user", "content": "12+30?"},
        {"role": "assistant", "content": "<think>carry nothing</think>\nIt is 42."},
        {"role": "user", "content": "Sure?"},
        {"role": "assistant", "content": "Yes."},
    ]
    first, second = renderer.conversation_to_records(messages)
    assert "carry nothing" in text_of(renderer, first.output_ids)
    assert "carry nothing" not in text_of(renderer, second.prompt_ids)


def test_content_parts_and_null_content_are_read_as_text():
    renderer = ChatRenderer(small_tokenizer())
    parts = [{"type": "text", "text": "12"}, {"type": "text", "text": "+30?"}]
    assert renderer.render([{"role": "user", "content": parts}]) == renderer.render(
        [{"role": "user", "content": "12+30?"}]
    )
    assert renderer.render([{"role": "assistant", "content": None}]) == renderer.render(
        [{"role": "assistant", "content": ""}]
    )


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "wizard", "content": "hi"}, "messages[0].role"),
        ({"role": [], "content": "hi"}, "messages[0].role"),
        ({"role": "assistant", "tool_calls": 7}, "messages[0].tool_calls"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "messages[0].content[0]"),
        ({"role": "user", "content": 7}, "messages[0].content"),
        ({"role": "assistant", "tool_calls": [{"id": "x"}]}, "messages[0].tool_calls[0]"),
    ],
)
def test_a_malformed_message_is_refused_with_its_place(message, param):
    with pytest.raises(BadRequestError) as caught:
        ChatRenderer(small_tokenizer()).render([message])
    assert caught.value.param == param


def test_a_conversation_that_the_template_refuses_or_without_an_answer_is_an_error():
    renderer = ChatRenderer(small_tokenizer(GEMMA, "<end_of_turn>"))
    with pytest.raises(BadRequestError, match="roles must alternate"):
        renderer.render([{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}])
    with pytest.raises(ValueError, match="no assistant message"):
        renderer.conversation_to_records([{"role": "user", "content": "hi"}])


def test_the_tool_format_is_the_given_one_or_that_of_tokenizer_or_template_or_hermes(tmp_path):
    tokenizer = small_tokenizer()
    assert ChatRenderer(tokenizer).tool_format.name == "hermes"
    assert ChatRenderer(tokenizer, tool_format="compact").tool_format.name == "pythonic"
    assert ChatRenderer(small_tokenizer(CHATML_TOOLS), tool_format="compact").tool_format.name == "hermes"
    tokenizer.init_kwargs["tool_format"] = "of a later version"
    assert ChatRenderer(tokenizer).tool_format.name == "hermes"
    keep_tool_format(tokenizer, "compact")
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert ChatRenderer(again).tool_format.name == "pythonic"
    assert ChatRenderer(again, tool_format="llama3").tool_format.name == "llama3"
    with pytest.raises(ValueError, match="thinking must be one of auto, keep, drop, fork, off, not 'on'"):
        ChatRenderer(tokenizer, thinking="on")
    with pytest.raises(ValueError, match=r"tool_format must be one of auto, compact, hermes, llama3, .*not 'yaml'"):
        ChatRenderer(tokenizer, tool_format="yaml")


def test_only_a_tokenizer_with_a_kept_format_is_saved_beside_the_weights(tmp_path):
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    tokenizer = small_tokenizer()
    save_kept_tokenizer(tokenizer, tmp_path)
    assert not (tmp_path / "adapter" / "tokenizer_config.json").exists()
    keep_tool_format(tokenizer, "compact")
    save_kept_tokenizer(tokenizer, tmp_path)
    assert (tmp_path / "adapter" / "tokenizer_config.json").is_file()


def test_new_adapters_of_included_agents_learn_compact_calls_and_others_keep_their_format(tmp_path):
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    assert TrainConfig(agent="math").completed().loop.tool_format == "compact"
    for model in (tmp_path, tmp_path / "adapter"):
        assert TrainConfig(agent="math", model=str(model)).completed().loop.tool_format == "auto"
        given = TrainConfig(agent="math", model=str(model), tool_format="compact")
        assert given.completed().loop.tool_format == "compact"
    assert TrainConfig(agent="my:Agent").completed().loop.tool_format == "auto"


RUN = {"sft_examples": 2, "total_steps": 1, "eval_size": 1, "tasks_per_step": 1, "samples_per_prompt": 2}
RUN |= {"max_new_tokens": 4, "n_runners": 4, "console": False, "transfer_size": 0}


def test_the_adapters_of_a_run_are_served_in_its_tool_format(tiny_folder, tmp_path) -> None:
    train_job(TrainConfig(model=tiny_folder, output_dir=tmp_path, tool_format="compact", checkpoint_every=1, **RUN))
    checkpoint = tmp_path / "checkpoints" / "step_1" / "adapter"
    assert ChatRenderer(load_tokenizer(tiny_folder, adapter=checkpoint)).tool_format.name == "pythonic"
    served = ServedPolicy.load(tiny_folder, adapter=tmp_path / "adapter")
    try:
        served.serve()
        assert served.server is not None
        assert served.server.renderer.tool_format.name == "pythonic"
    finally:
        served.close()
    assert ChatRenderer(load_tokenizer(str(tmp_path))).tool_format.name == "pythonic"
