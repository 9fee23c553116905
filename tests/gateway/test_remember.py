"""Which recorded ids a request goes on from."""

from __future__ import annotations

import sys

import pytest

from mini_agentic_rl.gateway.completion.remember import ConversationMemory
from mini_agentic_rl.gateway.render.messages import plain_messages
from mini_agentic_rl.gateway.render.renderer import ChatRenderer

from .samples import CALCULATOR, QUESTION, call_message, result_message
from .small_tokenizer import small_tokenizer

ATTEMPT = ("rollout", "attempt")
TOOLS = [CALCULATOR]


@pytest.fixture
def memory(tokenizer):
    return ConversationMemory(ChatRenderer(tokenizer))


def serve_call(memory, messages, answer, *, scope=ATTEMPT, output=None, tools=TOOLS):
    """One call as the gateway serves it; returns all its ids."""
    prompt = memory.prompt(scope, plain_messages(messages), tools)
    tokenizer = small_tokenizer()
    output = output or [*tokenizer.encode("s4mpled"), tokenizer.eos_token_id]
    memory.remember(scope, prompt, prompt.ids, output, plain_messages([answer])[0])
    return [*prompt.ids, *output]


def prompt_of(memory, messages, *, scope=ATTEMPT, tools=TOOLS):
    return list(memory.prompt(scope, plain_messages(messages), tools).ids)


def continues(memory, recorded, messages, **options):
    return prompt_of(memory, messages, **options)[: len(recorded)] == recorded


def reasons(memory):
    counts = memory.prompt_counts()
    assert counts["forked"] == sum(count for kind, count in counts.items() if kind.startswith("forked_"))
    return {kind.removeprefix("forked_"): n for kind, n in counts.items() if kind.startswith("forked_") and n}


def test_the_answer_is_recognised_however_the_client_writes_it_back(memory):
    recorded = serve_call(memory, QUESTION, call_message('{"expression": "12+30"}', content=None))
    for same in (
        call_message('{"expression":"12+30"}', content=""),
        call_message('{ "expression": "12+30" }', content="  "),
        {**call_message(), "refusal": None, "audio": None},
    ):
        assert continues(memory, recorded, [*QUESTION, same, result_message()])
    assert memory.prompt_counts()["continued"] == 3


def test_a_changed_answer_question_or_tool_set_forks(memory):
    recorded = serve_call(memory, QUESTION, call_message())
    changed = (
        call_message('{"expression": "12+31"}'),
        call_message(content="Let me see."),
        {"role": "assistant", "content": "42"},
    )
    for other in changed:
        assert not continues(memory, recorded, [*QUESTION, other, result_message()])
    other_question = [{"role": "user", "content": "13+30?"}, call_message(), result_message()]
    assert not continues(memory, recorded, other_question)
    assert not continues(memory, recorded, [*QUESTION, call_message(), result_message()], tools=[])
    assert memory.prompt_counts()["continued"] == 0
    assert reasons(memory) == {"edited": 4, "tools": 1}


def test_a_late_divergence_keeps_the_recorded_beginning(memory):
    first = serve_call(memory, QUESTION, call_message())
    messages = [*QUESTION, call_message(), result_message()]
    second = serve_call(memory, messages, {"role": "assistant", "content": "The answer is 42."})
    changed = [*messages, {"role": "assistant", "content": "It is 42."}, {"role": "user", "content": "Sure?"}]
    assert second[: len(first)] == first
    assert continues(memory, first, changed)
    assert not continues(memory, second, changed)
    assert reasons(memory) == {"edited": 2}


def test_several_answers_to_one_prompt_each_continue(memory):
    tokenizer = small_tokenizer()
    recorded = {}
    for word in ("one", "two"):
        output = [*tokenizer.encode(f"sampled {word}"), tokenizer.eos_token_id]
        recorded[word] = serve_call(memory, QUESTION, {"role": "assistant", "content": word}, output=output)
    for word, ids in recorded.items():
        messages = [*QUESTION, {"role": "assistant", "content": word}, {"role": "user", "content": "Sure?"}]
        assert continues(memory, ids, messages)


def test_an_unfinished_answer_is_ended_before_the_conversation_goes_on(memory):
    tokenizer = small_tokenizer()
    answer = {"role": "assistant", "content": "The ans"}
    recorded = serve_call(memory, QUESTION, answer, output=tokenizer.encode("The ans"))
    ids = prompt_of(memory, [*QUESTION, answer, {"role": "user", "content": "Go on."}])
    assert ids[: len(recorded)] == recorded
    assert ids[len(recorded)] == tokenizer.eos_token_id


def test_attempts_do_not_know_of_each_other(memory):
    answer = {"role": "assistant", "content": "42"}
    recorded = serve_call(memory, QUESTION, answer)
    messages = [*QUESTION, answer, {"role": "user", "content": "Sure?"}]
    assert not continues(memory, recorded, messages, scope=("rollout", "another"))
    assert not continues(memory, recorded, messages, scope=None)
    assert (memory.prompt_counts()["rendered"], memory.prompt_counts()["forked"]) == (3, 0)


def test_memory_is_bounded_in_attempts_calls_and_tokens(tokenizer):
    renderer = ChatRenderer(tokenizer)
    memory = ConversationMemory(renderer, max_attempts=3, max_calls=2)
    answers = [{"role": "assistant", "content": str(number)} for number in range(5)]
    for number in range(5):
        serve_call(memory, QUESTION, answers[number], scope=("rollout", str(number)))
    assert memory.counters()["attempts"] == 3
    recorded = [serve_call(memory, QUESTION, answer, scope=("rollout", "4")) for answer in answers]
    assert continues(memory, recorded[4], [*QUESTION, answers[4]], scope=("rollout", "4"))
    assert not continues(memory, recorded[0], [*QUESTION, answers[0]], scope=("rollout", "4"))
    prompt_of(memory, [*QUESTION, {"role": "assistant", "content": "x"}], scope=("rollout", "0"))
    assert reasons(memory) == {"edited": 1}
    small = ConversationMemory(renderer, max_tokens=len(recorded[0]) * 2)
    for number in range(5):
        serve_call(small, QUESTION, answers[number], scope=("rollout", str(number)))
    assert small.counters()["tokens"] == len(recorded[0]) * 2


def test_examples_in_the_prompt_are_no_divergence(memory):
    serve_call(memory, QUESTION, {"role": "assistant", "content": "42"})
    examples = [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}]
    for number in range(2):
        prompt_of(memory, [*examples, {"role": "user", "content": f"{number}?"}])
    assert (memory.prompt_counts()["rendered"], memory.prompt_counts()["forked"]) == (3, 0)


def test_a_history_cut_short_by_the_client_is_told_as_edited(memory):
    messages = list(QUESTION)
    for word in ("one", "two"):
        answer = {"role": "assistant", "content": word}
        serve_call(memory, messages, answer)
        messages += [answer, {"role": "user", "content": "Sure?"}]
    prompt_of(memory, messages[2:])
    assert reasons(memory) == {"edited": 1}


@pytest.mark.parametrize("thinking", ["fork", "keep"])
def test_an_answer_is_recognised_with_its_thought_or_without_but_not_with_another(thinking):
    memory = ConversationMemory(ChatRenderer(small_tokenizer(), thinking=thinking))
    answer = {"role": "assistant", "content": "42"}
    recorded = serve_call(memory, QUESTION, {**answer, "reasoning_content": "carry nothing"})
    more = {"role": "user", "content": "Sure?"}
    sent = ({}, {"reasoning_content": None}, {"reasoning_content": ""}, {"reasoning": "carry  nothing"})
    for same in (*sent, {"content": "<think>carry nothing</think>42"}):
        assert continues(memory, recorded, [*QUESTION, {**answer, **same}, more])
    assert memory.prompt_counts()["continued"] == 5
    assert not continues(memory, recorded, [*QUESTION, {**answer, "reasoning_content": "carry one"}, more])
    assert reasons(memory) == {"edited": 1}


def test_prompts_in_other_threads_do_not_disturb_an_eviction(tokenizer):
    memory = ConversationMemory(ChatRenderer(tokenizer), max_attempts=1)
    answer = {"role": "assistant", "content": "42"}
    recorded = serve_call(memory, QUESTION, answer, scope=("rollout", "old"))

    def prompt_between_steps(frame, event, arg):
        if frame.f_code.co_name == "remember":
            for name in ("new", "old"):
                prompt_of(memory, QUESTION, scope=("rollout", name))

    sys.setprofile(prompt_between_steps)
    try:
        serve_call(memory, QUESTION, answer, scope=("rollout", "new"))
    finally:
        sys.setprofile(None)
    assert (memory.counters()["attempts"], memory.counters()["tokens"]) == (1, len(recorded))
