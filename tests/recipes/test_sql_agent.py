"""The SQL agent against a real server whose model says what a script has it say, and its training on a tiny model."""

from __future__ import annotations

import json
import sqlite3

import pytest

from gateway.scripted import ScriptedSampler
from gateway.small_tokenizer import CHATML_TOOLS, small_tokenizer
from mini_agentic_rl.datasets import load_examples
from mini_agentic_rl.emitter import find_reward_spans, get_rewards_from_span
from mini_agentic_rl.environments import load_tasks
from mini_agentic_rl.gateway.http.server import MiniLLMServer
from mini_agentic_rl.recipes.sql import sql_recipe
from mini_agentic_rl.recipes.sql.agent import SqlAgent
from mini_agentic_rl.recipes.sql.data import SQL_TOOLS, MedicalQuestions, demonstration, medical_prompt
from mini_agentic_rl.recipes.sql.job import SqlTrainConfig
from mini_agentic_rl.runner import LitAgentRunner
from mini_agentic_rl.store import InMemoryLightningStore
from mini_agentic_rl.tracer import OtelTracer


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINI_AGENTIC_RL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def agent(_cache):
    agent = SqlAgent()
    yield agent
    agent.database.close()
    agent.twin.close()


@pytest.fixture(scope="module")
def task():
    return next(row for row in MedicalQuestions("test", 40, difficulty=1) if row["template"] == "price")


def call(name: str, **arguments) -> str:
    text = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{text}\n</tool_call>"


async def play(agent, task, answers, **options):
    """Run one rollout; returns it, its rewards by name, what the model was asked, and the server's renderer."""
    tokenizer, store = small_tokenizer(CHATML_TOOLS), InMemoryLightningStore()
    sampler = ScriptedSampler(tokenizer, answers, **options)
    server = MiniLLMServer(sampler, tokenizer, model_name="tiny", store=store).start()
    try:
        runner = LitAgentRunner(OtelTracer())
        with runner.run_context(agent=agent, store=store):
            rollout = await runner.step(task, resources={"llm": server.as_resource({"max_tokens": 800})})
        spans = find_reward_spans(list(await store.query_spans(rollout.rollout_id)))
        rewards = {reward.name: reward.value for span in spans for reward in get_rewards_from_span(span)}
        return rollout, rewards, sampler.requests, server.renderer
    finally:
        server.stop(timeout=1)


def asked(requests) -> str:
    return small_tokenizer().decode(requests[-1].prompt_ids)


async def test_a_question_becomes_a_query_its_rows_and_an_answer_as_in_the_demonstration(agent, task):
    answers = [call("query", sql=task["sql"]), f"Answer: {task['answer']}"]
    rollout, rewards, requests, renderer = await play(agent, task, answers)
    assert rollout.status == "succeeded"
    assert rewards == {"reward": 1.2, "execution": 1.0, "answer": 1.0, "queries": 1.0}
    assert f"<tool_response>\n{task['answer']}\n</tool_response>" in asked(requests)
    prompts = [list(request.prompt_ids) for request in requests]
    assert prompts[1][: len(prompts[0])] == prompts[0]
    shown = list(renderer.conversation_to_records(demonstration(task, agent.system_prompt), SQL_TOOLS))
    assert [list(record.prompt_ids) for record in shown] == prompts
    assert agent.system_prompt == medical_prompt()


def test_the_examples_of_the_data_set_are_what_its_training_imitates():
    recipe = sql_recipe()
    defaults = SqlTrainConfig()
    tasks = load_tasks(defaults.tasks.dataset, "train", None, defaults.loop.seed, defaults.tasks.difficulty)
    examples = load_examples("medical:1", "sft", max_samples=defaults.warm_start.examples)
    assert [row["messages"] for row in examples] == list(map(recipe.demonstrations.demonstrate, tasks[: len(examples)]))
    assert examples[0]["tools"] == recipe.demonstrations.tools(tasks[0])
    recipe.agent.database.close()
    recipe.agent.twin.close()


async def test_a_refused_query_can_be_mended(agent, task):
    answers = [
        call("query", sql="DROP TABLE drug"),
        call("schema", table="drug"),
        call("query", sql=task["sql"]),
        f"Answer: {task['answer']}",
    ]
    _, rewards, requests, _ = await play(agent, task, answers)
    assert rewards["execution"] == 1.0
    assert rewards["queries"] == 2.0
    text = asked(requests)
    assert "error: DROP is not allowed: the database can only be read; write one SELECT statement" in text
    assert "CREATE TABLE drug" in text


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (["Answer: 42"], {"reward": 0.0, "execution": 0.0, "answer": 0.0, "queries": 0.0}),
        ([call("query", sql="SELECT name FROM drug WHERE id = 1")], {"reward": 0.0, "queries": 4.0}),
        (["<tool_call>\n{broken\n</tool_call>"], {"reward": 0.0, "queries": 0.0}),
    ],
)
async def test_whatever_the_model_says_the_rollout_has_a_reward(agent, task, answers, expected):
    rollout, rewards, _, _ = await play(agent, task, answers)
    assert rollout.status == "succeeded"
    assert expected.items() <= rewards.items()


async def test_another_database_can_be_asked(tmp_path):
    path = tmp_path / "shop.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE item (name TEXT, price REAL)")
        connection.execute("INSERT INTO item VALUES ('pear', 2.5)")
    connection.close()
    agent = SqlAgent(database=path)
    assert agent.system_prompt.endswith("item(name,price)")
    assert agent.twin is None
    gold = {"question": "What does a pear cost?", "sql": "SELECT price FROM item WHERE name = 'pear'"}
    answers = [call("query", sql="SELECT price FROM item LIMIT 1"), "Answer: 2.5"]
    _, rewards, _, _ = await play(agent, gold, answers)
    assert rewards["reward"] == 1.2
    agent.database.close()


def test_a_demonstration_needs_a_query_and_its_rows(task):
    with pytest.raises(ValueError, match='needs "sql" and the "rows"'):
        demonstration({"question": "How many?"}, "")
    with pytest.raises(ValueError, match="question"):
        demonstration({**task, "question": ""}, "")
    with pytest.raises(ValueError, match="max_turns"):
        SqlAgent(max_turns=0)
