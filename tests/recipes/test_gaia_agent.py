"""The GAIA agent against a real server whose model says what a script has it say, and its tools."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from openai import BadRequestError

from gateway.scripted import ScriptedSampler
from gateway.small_tokenizer import CHATML_TOOLS, small_tokenizer
from mini_agentic_rl.emitter import find_final_reward, find_reward_spans, get_rewards_from_span
from mini_agentic_rl.gateway.http.server import MiniLLMServer
from mini_agentic_rl.recipes.gaia import FunctionTool, GaiaAgent, web_search_tool
from mini_agentic_rl.recipes.gaia.agent import MAX_RESULT, PAGE, Toolbox, calculator_tool, read_file_tool
from mini_agentic_rl.recipes.gaia.tasks import load_gaia
from mini_agentic_rl.runner import LitAgentRunner
from mini_agentic_rl.store import InMemoryLightningStore
from mini_agentic_rl.tracer import OtelTracer


def call(name: str, **arguments) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@pytest.fixture
def copy(tmp_path) -> Path:
    """A copy of the data set with two questions, one about a file."""
    (tmp_path / "fruit.csv").write_text("name,price\napple,1.5\n")
    records = [
        {"task_id": "1", "Question": "What is 6 x 7?", "Level": 1, "Final answer": "42", "file_name": ""},
        {
            "task_id": "2",
            "Question": "How much is an apple?",
            "Level": 2,
            "Final answer": "1.5",
            "file_name": "fruit.csv",
        },
    ]
    tmp_path.joinpath("metadata.jsonl").write_text("\n".join(map(json.dumps, records)))
    return tmp_path


async def play(task, answers, *, context_length=8192, **options):
    """Run one rollout; returns it, its spans, and what the model was asked, as text."""
    tokenizer, store = small_tokenizer(CHATML_TOOLS), InMemoryLightningStore()
    sampler = ScriptedSampler(tokenizer, answers, context_length=context_length)
    server = MiniLLMServer(sampler, tokenizer, model_name="tiny", store=store).start()
    try:
        runner = LitAgentRunner(OtelTracer())
        with runner.run_context(agent=GaiaAgent(**options), store=store):
            rollout = await runner.step(task, resources={"llm": server.as_resource({"max_tokens": 400})})
        return rollout, list(await store.query_spans(rollout.rollout_id)), sampler.requests
    finally:
        server.stop(timeout=1)


def asked(requests) -> str:
    return small_tokenizer().decode(requests[-1].prompt_ids)


def rewards(spans) -> dict[str, float]:
    (span,) = find_reward_spans(spans)
    return {reward.name: reward.value for reward in get_rewards_from_span(span)}


@pytest.mark.parametrize(("answer", "reward"), [("FINAL ANSWER: 42", 1.0), ("FINAL ANSWER: 41", 0.0), ("42", 0.0)])
async def test_the_reward_is_the_benchmarks_score_of_the_final_answer(copy, answer, reward):
    task = next(row for row in load_gaia(copy, "all") if row["id"] == "1")
    _, spans, requests = await play(task, [call("calculator", expression="6*7"), answer])
    assert find_final_reward(spans) == reward
    assert rewards(spans) == {"reward": reward, "answered": float("FINAL" in answer), "turns": 2.0}
    assert "<tool_response>\n42\n</tool_response>" in asked(requests)
    first, second = (list(request.prompt_ids) for request in requests)
    assert second[: len(first)] == first
    assert "read_file" not in asked(requests)


async def test_the_file_of_a_question_is_read(copy):
    task = next(row for row in load_gaia(copy, "all") if row["id"] == "2")
    _, spans, requests = await play(task, [call("read_file"), "FINAL ANSWER: $1.50"])
    assert "Attached file: fruit.csv" in asked(requests)
    assert "name,price\napple,1.5\n" in asked(requests)
    assert find_final_reward(spans) == 1.0


async def test_a_search_of_ones_own_is_offered_and_used(copy):
    task = next(row for row in load_gaia(copy, "all") if row["id"] == "1")

    async def search(query: str) -> str:
        return f"Found about {query}: 42."

    answers = [call("web_search", query="six by seven"), "FINAL ANSWER: 42"]
    _, spans, requests = await play(task, answers, tools=[web_search_tool(search)])
    assert "Found about six by seven: 42." in asked(requests)
    assert find_final_reward(spans) == 1.0


async def test_turns_and_context_are_bounded(copy):
    task = next(row for row in load_gaia(copy, "all") if row["id"] == "1")
    _, spans, requests = await play(task, [call("calculator", expression="1")], max_turns=3)
    assert rewards(spans) == {"reward": 0.0, "answered": 0.0, "turns": 3.0}
    length = len(requests[0].prompt_ids)
    _, spans, _ = await play(task, [call("calculator", expression="1")], context_length=length + 100)
    assert rewards(spans)["reward"] == 0.0
    assert 1 <= rewards(spans)["turns"] < 12
    with pytest.raises(BadRequestError, match="context"):
        await play(task, ["?"], context_length=length)


async def test_calls_that_make_no_sense_are_told_to_the_model():
    def fails(_arguments):
        raise ValueError("not today")

    box = Toolbox([calculator_tool(), FunctionTool("fail", "Fails.", {"type": "object"}, fails)])
    assert (await box.use("calculator", '{"expression": "6*7"}')) == "42"
    assert (await box.use("search", "{}")).startswith("error: no tool named search; use calculator, fail")
    assert (await box.use("calculator", "{")) == "error: arguments are not valid JSON"
    assert (await box.use("calculator", "[]")) == "error: arguments must be a JSON object"
    assert (await box.use("calculator", "{}")) == "error: the argument expression is missing"
    assert (await box.use("fail", "{}")) == "error: not today"
    with pytest.raises(ValueError, match="same name"):
        GaiaAgent(tools=[calculator_tool()])


async def test_a_long_result_is_cut_and_says_so():
    box = Toolbox([web_search_tool(lambda query: "x" * (MAX_RESULT + 7))])
    assert (await box.use("web_search", '{"query": "x"}')).endswith("x\n[7 characters left out]")


def test_a_long_file_is_read_page_by_page(tmp_path):
    path = tmp_path / "long.txt"
    path.write_text("a" * PAGE + "b" * 10)
    read = read_file_tool(path, "long.txt").run
    assert read({}) == "a" * PAGE + f"\n[10 more characters; go on with offset {PAGE}]"
    assert read({"offset": PAGE}) == "b" * 10
    for offset in (-1, "3", PAGE + 10):
        with pytest.raises(ValueError, match=r"offset|characters"):
            read({"offset": offset})


def test_what_cannot_be_read_is_told_to_the_model(tmp_path, monkeypatch):
    picture, long = tmp_path / "a.png", tmp_path / "long.txt"
    picture.write_bytes(b"\x89PNG\xff\xfe")
    with pytest.raises(ValueError, match=r"not a text file; \.png files cannot be read"):
        read_file_tool(picture, "a.png").run({})
    monkeypatch.setattr("mini_agentic_rl.recipes.gaia.agent.MAX_FILE_BYTES", 3)
    long.write_text("ünd")
    with pytest.raises(ValueError, match="longer than 3 bytes"):
        read_file_tool(long, "long.txt").run({})
