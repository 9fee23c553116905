"""The math agent against a real server over a real socket, and the score of what it leaves behind."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from mini_agentic_rl.datasets import ArithmeticDataset, DatasetError, load_examples, load_task_dataset
from mini_agentic_rl.environments import load_recipe, shared_client
from mini_agentic_rl.integrations.hello_agents import create_accuracy_reward, create_math_dataset
from mini_agentic_rl.integrations.hello_agents.prompt_agent import PromptAgent
from mini_agentic_rl.recipes.math import MAX_TURNS, TOOLS, MathAgent, MathRewardHook, demonstration, opening, use_tool
from mini_agentic_rl.recipes.math.worked import operations
from mini_agentic_rl.rewards import is_correct
from mini_agentic_rl.semconv import CompletionSpanAttributes
from mini_agentic_rl.tools import calculate
from mini_agentic_rl.types import LLM, Attempt, AttemptedRollout, PromptTemplate, Span
from recipes.playing import ScriptedServer, calls, says, scripted_server

server = scripted_server
TASK = {"question": "What is 12 times 34?", "answer": "408"}


def a_rollout(task: Any = None) -> AttemptedRollout:
    attempt = Attempt(rollout_id="ro-1", attempt_id="at-1", sequence_id=1, start_time=0.0)
    return AttemptedRollout(rollout_id="ro-1", input=task or TASK, start_time=0.0, attempt=attempt)


async def test_tool_calls_are_executed_and_their_results_go_back(server: ScriptedServer) -> None:
    call = calls("calculator", '{"expression": "12*34"}', "not json", '{"expr": 1}')
    server.script = [call, says("Answer: 408")]
    await MathAgent().rollout_async(TASK, {"llm": server.llm(temperature=0.5, max_tokens=64)}, a_rollout())
    first, second = server.requests
    assert server.paths == ["rollout/ro-1/attempt/at-1/v1/chat/completions"] * 2
    assert [message["role"] for message in first["messages"]] == ["system", "user"]
    assert first["tools"][0]["function"]["name"] == "calculator"
    assert (first["temperature"], first["max_tokens"], first["model"]) == (0.5, 64, "m")
    assert second["messages"][:2] == first["messages"]
    assert second["messages"][2]["tool_calls"] == call["tool_calls"]
    result, *refused = second["messages"][3:]
    assert result == {"role": "tool", "tool_call_id": "call_0", "content": "408"}
    assert all(message["content"].startswith("error: ") for message in refused)


async def test_the_conversation_ends_after_max_turns(server: ScriptedServer) -> None:
    server.script = [calls("calculator", '{"expression": "1"}')]
    await MathAgent(max_turns=3).rollout_async(TASK, {"llm": server.llm()}, a_rollout())
    assert len(server.requests) == 3


async def test_a_task_of_the_style_text_is_answered_without_tools(server: ScriptedServer) -> None:
    (task,) = load_task_dataset("text:arithmetic", size=1)
    server.script = [calls("calculator", '{"expression": "1"}')]
    await MathAgent().rollout_async(task, {"llm": server.llm()}, a_rollout())
    (request,) = server.requests
    assert "tools" not in request
    assert "step by step" in request["messages"][0]["content"]


@pytest.mark.parametrize("load", [load_examples, lambda name, form, **_: create_math_dataset(name, "train", 1, form)])
async def test_rows_for_rewards_are_played_by_the_same_conversation(server: ScriptedServer, load: Any) -> None:
    (task,) = load("arithmetic:1", "rl", max_samples=1)
    server.script = [
        calls("calculator", json.dumps({"expression": task["expression"]})),
        says(f"Answer: {task['answer']}"),
    ]
    rollout = a_rollout()
    reward = await PromptAgent(create_accuracy_reward()).rollout_async(task, {"llm": server.llm()}, rollout)
    assert reward == 1.0
    first, second = server.requests
    assert first["messages"] == task["prompt"]
    assert first["tools"] == second["tools"] == TOOLS
    assert second["messages"][-1]["content"] == task["answer"]
    assert rollout.metadata["output"] == f"Answer: {task['answer']}"


async def test_a_row_for_rewards_that_ends_in_a_call_has_no_answer(server: ScriptedServer) -> None:
    (task,) = load_examples("arithmetic:1", "rl", max_samples=1)
    server.script = [calls("calculator", '{"expression": "1"}', content=f"Answer: {task['answer']}")]
    agent = PromptAgent(create_accuracy_reward())
    assert await agent.rollout_async(task, {"llm": server.llm()}, a_rollout()) == 0.0
    assert len(server.requests) == MAX_TURNS


async def test_an_llm_of_any_name_is_used_if_it_is_the_only_one(server: ScriptedServer) -> None:
    server.script = [says("Answer: 408")]
    resources = {"main": server.llm(), "prompt": PromptTemplate(template="x")}
    await MathAgent().rollout_async(TASK, resources, a_rollout())
    assert len(server.requests) == 1
    for names in ((), ("a", "b")):
        resources = {name: LLM(endpoint="http://nowhere/v1", model="m") for name in names}
        with pytest.raises(ValueError, match='named "llm"'):
            await MathAgent().rollout_async(TASK, resources, a_rollout())
    with pytest.raises(ValueError, match="max_turns"):
        MathAgent(max_turns=0)
    with pytest.raises(ValueError, match="question"):
        await MathAgent().rollout_async({"answer": "1"}, {"llm": server.llm()}, a_rollout())


async def test_clients_of_one_loop_share_their_connections() -> None:
    first, second = shared_client("http://a/v1"), shared_client("http://b/v1", "key")
    assert first._client is second._client
    assert (str(first.base_url), str(second.base_url), second.api_key) == ("http://a/v1/", "http://b/v1/", "key")


def test_invalid_calls_get_an_error() -> None:
    for arguments in ("{", "[]", '{"expression": {}}', "[" * 100_000):
        assert use_tool("calculator", arguments).startswith("error: ")
    assert use_tool("search", "{}").startswith("error: no tool named search")
    assert use_tool("calculator", '{"expression": 12}') == "12"


@pytest.mark.parametrize("think", [True, False])
def test_a_demonstration_makes_one_call_for_each_operation_and_earns_the_reward(think: bool) -> None:
    for row in ArithmeticDataset("train", 40):
        (system, user), said = split_at(demonstration(row, think=think), 2)
        calls = len(operations(row["expression"]))
        steps, (answer,) = split_at(said, 2 * calls)
        assert [message["role"] for message in (system, user, answer)] == ["system", "user", "assistant"]
        assert user["content"] == row["question"]
        for call, tool in zip(steps[::2], steps[1::2], strict=True):
            (tool_call,) = call["tool_calls"]
            result = use_tool(tool_call["function"]["name"], tool_call["function"]["arguments"])
            assert tool == {"role": "tool", "tool_call_id": tool_call["id"], "content": result}
            expression = json.loads(tool_call["function"]["arguments"])["expression"]
            assert len(re.findall(r"(?<=\d)[-+*/]", expression)) == 1
        assert steps[-1]["content"] == row["answer"]
        assert answer["content"] == f"Answer: {row['answer']}"
        assert [call["content"] is not None for call in steps[::2]] == [think] + [False] * (calls - 1)


def split_at(messages: list[dict[str, Any]], place: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    return messages[:place], messages[place:]


def test_an_expression_that_has_no_exact_steps_is_one_call_and_an_invalid_one_is_named() -> None:
    for expression in ("(10/3)*3", "sqrt(16)+1", "2**3"):
        _, _, call, *_ = demonstration({"question": "q?", "expression": expression})
        assert json.loads(call["tool_calls"][0]["function"]["arguments"]) == {"expression": expression}
    with pytest.raises(ValueError, match=r"'x7'.*'2\*'"):
        demonstration({"id": "x7", "question": "q?", "expression": "2*"})


def completion(message: dict[str, Any], sequence_id: int = 1, finish: str = "stop") -> Span:
    return Span.from_attributes(
        name=CompletionSpanAttributes.SPAN_NAME,
        rollout_id="ro-1",
        attempt_id="at-1",
        sequence_id=sequence_id,
        attributes={
            CompletionSpanAttributes.OUTPUT_MESSAGES: json.dumps(message),
            CompletionSpanAttributes.FINISH_REASONS: [finish],
        },
    )


async def score(*spans: Span, task: Any = None, **options: float) -> float | None:
    scores = await MathRewardHook(**options).scores(a_rollout(task), list(spans))
    return None if scores is None else scores["reward"]


async def test_the_last_message_decides_and_only_a_finished_text_can_be_right() -> None:
    right, wrong = says("Answer: 408"), says("Answer: 409")
    assert await score(completion(right, 2), completion(wrong, 1)) == 1.0
    assert await score(completion(wrong, 2), completion(right, 1)) == 0.0
    assert await score(completion(right, finish="length")) == 0.0
    assert (
        await score(completion(calls("calculator", '{"expression": "1"}', content="Answer: 408"), finish="tool_calls"))
        == 0.0
    )
    assert await score(completion(says(None))) == 0.0


@pytest.mark.parametrize(
    "text", ["Answer: 408\n</tool_response>", "Answer: 408\nAnswer: 408", "Answer: 408\nDone.", "It is 408."]
)
async def test_a_right_answer_in_a_reply_that_is_not_clean_earns_half(text: str) -> None:
    scores = await MathRewardHook().scores(a_rollout(), [completion(says(text))])
    assert scores == {"reward": 0.5, "correct": 1.0, "clean": 0.0, "tool": 0.0}
    assert await score(completion(says(text)), unclean=0.0) == 0.0


async def test_words_of_a_template_beside_a_call_make_the_reply_unclean() -> None:
    call = calls("calculator", '{"expression": "12*34"}', content="</tool_call>")
    assert await score(completion(call, 1), completion(says("Answer: 408"), 2)) == 0.5
    call = calls("calculator", '{"expression": "12*34"}', content="Multiply.")
    assert await score(completion(call, 1), completion(says("12*34 it is.\nAnswer: 408"), 2)) == 1.0


async def test_a_missing_reward_is_no_silent_zero() -> None:
    assert await score() is None
    assert await score(Span.from_attributes(attributes={"x": 1}, name="agentlightning.message")) is None
    with pytest.raises(ValueError, match=r"ro-1.*answer"):
        await score(completion(says("Answer: 408")), task={"question": "q?"})


@pytest.mark.parametrize(("dataset", "turns"), [("arithmetic:1,2", 6), ("gsm8k", 10)])
def test_generated_arithmetic_takes_fewer_calls_than_other_problems(dataset, turns):
    agent = load_recipe("math", dataset).agent
    assert isinstance(agent, MathAgent)
    assert agent.max_turns == turns


# Word problems as conversations with the calculator, and without it where that is asked for


NATALIA = (
    "Natalia sold 48/2 = <<48/2=24>>24 clips in May.\n"
    "Natalia sold 48+24 = <<48+24=72>>72 clips altogether in April and May.\n#### 72"
)


def solved(solution: str) -> dict[str, Any]:
    return {"question": "How many?", "solution": solution, "answer": solution.rpartition("#### ")[2]}


def lines_of(messages: list[dict[str, Any]]) -> list[str]:
    """What is said and called, in order, without the prompt."""
    found = []
    for message in messages[2:]:
        calls = [json.loads(call["function"]["arguments"])["expression"] for call in message.get("tool_calls", ())]
        found += [f"{message['role']}: {message['content']}", *(f"call: {call}" for call in calls)]
    return found


def gsm8k_folder(folder: Path) -> Path:
    rows = [{"question": f"{n}. How many clips?", "answer": NATALIA} for n in range(20)]
    for name, part in (("train", rows[:15]), ("test", rows[15:])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    return folder


def test_marks_of_gsm8k_become_calls_between_the_words_of_the_solution() -> None:
    assert lines_of(demonstration(solved(NATALIA))) == [
        "assistant: Natalia sold 48/2",
        "call: 48/2",
        "tool: 24",
        "assistant: 24 clips in May.\nNatalia sold 48+24",
        "call: 48+24",
        "tool: 72",
        "assistant: 72 clips altogether in April and May.\nAnswer: 72",
    ]


@pytest.mark.parametrize(
    ("solution", "calls"),
    [
        ("He pays $<<5*2=10>>10 and 10% of that, $<<10*.1=1>>1.\n#### 11", ["5*2", "10*.1"]),
        ("That is <<10/3=3.33>>3.33 each.\n#### 3.33", ["10/3"]),
        ("Wrong: <<2+2=5>>5. Odd: <<4=4>>4, <<x+1=2>>2, <<1/0=0>>0.\n#### 5", []),
        ("James responds to 160-48=112 emails, in a week to 112*5=560.\n#### 560", ["160-48", "112*5"]),
        ("She reads 1,200 + 300 = 1,500 pages = 2 books.\n#### 1500", ["1,200 + 300"]),
    ],
)
def test_only_what_the_calculator_finds_as_it_is_written_becomes_a_call(solution: str, calls: list[str]) -> None:
    messages = demonstration(solved(solution))
    lines = lines_of(messages)
    assert [line.removeprefix("call: ") for line in lines if line.startswith("call: ")] == calls
    assert [line.removeprefix("tool: ") for line in lines if line.startswith("tool: ")] == list(map(calculate, calls))
    assert is_correct(messages[-1]["content"], solved(solution)["answer"])
    ids = [call["id"] for message in messages for call in message.get("tool_calls", ())]
    assert ids == [message["tool_call_id"] for message in messages if message["role"] == "tool"]
    assert len(ids) == len(set(ids))
    assert not any("<<" in str(message["content"]) for message in messages)


def test_a_solution_made_to_be_slow_is_not() -> None:
    for text in ("1+" * 20_000, "<<" * 20_000, "1 = " * 20_000, "(" * 40_000 + "=3", "9*" * 30 + "=" * 20_000):
        assert demonstration(solved(f"{text}\n#### 1"))[-1]["content"].endswith("Answer: 1")


@pytest.mark.parametrize("name", ["gsm8k", "./gsm8k", "gsm8k/train.jsonl", "arithmetic"])
def test_imitation_rewards_and_the_agent_begin_with_the_same_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "gsm8k").mkdir()
    gsm8k_folder(tmp_path / "gsm8k")
    monkeypatch.chdir(tmp_path)
    shown, tasks = (load_examples(name, form, max_samples=3) for form in ("sft", "rl"))
    for example, task, agents in zip(shown, tasks, load_task_dataset(name, "train", 3), strict=True):
        assert example["messages"][:2] == task["prompt"] == opening(agents)
        assert example["tools"] == task["tools"] == TOOLS
        assert any(message.get("tool_calls") for message in example["messages"])


def test_text_before_the_name_of_a_data_set_asks_for_a_solution_in_words(tmp_path: Path) -> None:
    folder = gsm8k_folder(tmp_path)
    (example, *_), (task, *_) = (load_examples(f"text:{folder}", form, split="test") for form in ("sft", "rl"))
    assert example["messages"][:2] == task["prompt"] == opening(load_task_dataset(f"text:{folder}", "test")[0])
    assert "calculator" not in task["prompt"][0]["content"]
    assert "tools" not in example
    assert "tools" not in task
    words = (
        "Natalia sold 48/2 = 24 clips in May.\nNatalia sold 48+24 = 72 clips altogether in April and May.\nAnswer: 72"
    )
    assert [message["content"] for message in example["messages"][2:]] == [words]
    assert "tools" not in load_examples("text:arithmetic:1", "rl", max_samples=1)[0]
    with pytest.raises(DatasetError, match="'gsm9k' does not exist"):
        load_examples("text:gsm9k", "sft")


def test_examples_that_were_written_to_a_file_keep_their_tools(tmp_path: Path) -> None:
    rows = load_examples("arithmetic:1", "rl", max_samples=4)
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = load_examples(tmp_path / "tasks.jsonl", "rl", split="all")
    assert [(row["prompt"], row["tools"]) for row in found] == [(row["prompt"], row["tools"]) for row in rows]
