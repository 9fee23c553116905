"""The SQL agent against a real server with scripted answers, and its reward."""

from __future__ import annotations

import sqlite3

import pytest

from mini_agentic_rl.datasets import load_examples
from mini_agentic_rl.environments import load_tasks
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.recipes.sql import sql_recipe
from mini_agentic_rl.recipes.sql.agent import SqlAgent
from mini_agentic_rl.recipes.sql.data import SQL_TOOLS, MedicalQuestions, demonstration, medical_prompt
from mini_agentic_rl.recipes.sql.job import SqlTrainConfig
from mini_agentic_rl.recipes.sql.reward import (
    Queries,
    RewardUnavailableError,
    SqlReward,
    execution_match,
    same_rows,
    states_values,
)
from recipes.playing import call, last_prompt, play


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
def databases(agent):
    return agent.database, agent.twin


@pytest.fixture(scope="module")
def task():
    return next(row for row in MedicalQuestions("test", 40, difficulty=1) if row["template"] == "price")


async def test_a_question_becomes_a_query_its_rows_and_an_answer_as_in_the_demonstration(agent, task):
    answers = [call("query", sql=task["sql"]), f"Answer: {task['answer']}"]
    played = await play(agent, task, answers)
    assert played.rollout.status == "succeeded"
    assert played.rewards == {"reward": 1.2, "execution": 1.0, "answer": 1.0, "queries": 1.0}
    assert f"<tool_response>\n{task['answer']}\n</tool_response>" in last_prompt(played.requests)
    prompts = [list(request.prompt_ids) for request in played.requests]
    assert prompts[1][: len(prompts[0])] == prompts[0]
    shown = list(played.renderer.conversation_to_records(demonstration(task, agent.system_prompt), SQL_TOOLS))
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
    played = await play(agent, task, answers)
    assert (played.rewards["execution"], played.rewards["queries"]) == (1.0, 2.0)
    text = last_prompt(played.requests)
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
    played = await play(agent, task, answers)
    assert played.rollout.status == "succeeded"
    assert expected.items() <= played.rewards.items()


async def test_another_database_is_queried(tmp_path, task):
    with pytest.raises(ValueError, match='needs "sql" and the "rows"'):
        demonstration({"question": "How many?"}, "")
    with pytest.raises(ValueError, match="max_turns"):
        SqlAgent(max_turns=0)
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
    assert (await play(agent, gold, answers)).rewards["reward"] == 1.2
    agent.database.close()


# The reward


@pytest.mark.parametrize(
    ("gold", "found", "ordered", "same"),
    [
        ([(1,), (2,)], [(2,), (1,)], False, True),
        ([(1,), (2,)], [(2,), (1,)], True, False),
        ([(1,), (1,), (2,)], [(1,), (2,), (2,)], False, False),
        ([], [], False, True),
        ([(1.0,)], [(1,)], False, True),
        ([(12.34,)], [(12.341,)], False, True),
        ([(12.34,)], [(12.35,)], False, False),
        ([(1_000_000,)], [(1_000_001,)], False, False),
        ([(123_456_789.0,)], [(123_456_790.0,)], False, True),
        ([(1,)], [("1",)], False, False),
        ([(None,)], [(None,)], False, True),
        ([(None,)], [(0,)], False, False),
        ([("a", 1)], [(1, "a")], False, False),
        ([("A",)], [("a",)], False, False),
        ([("片剂",), (None,), (3,)], [(3,), ("片剂",), (None,)], False, True),
        ([("b", 2.001), ("a", 1)], [("a", 1), ("b", 2.0)], False, True),
        ([(0.25, "b"), (0.27, "a")], [(0.25 + 1e-9, "b"), (0.27, "a")], False, True),
    ],
)
def test_results_are_multisets_of_rows_unless_the_order_counts(gold, found, ordered, same):
    assert same_rows(gold, found, ordered=ordered) is same
    assert same_rows(found, gold, ordered=ordered) is same


def match(task, sql, databases):
    database, twin = databases
    return execution_match(task, sql, database.query(sql), database, twin)


def test_every_gold_query_matches_itself(databases):
    for row in MedicalQuestions("train", 16):
        assert match(row, row["sql"], databases)


def test_a_query_is_right_in_any_form_and_wrong_if_it_only_gives_the_value(databases, task):
    other = task["sql"].replace("SELECT price", "SELECT d.price AS cost").replace("FROM drug", "FROM drug AS d")
    assert other != task["sql"]
    assert match(task, other, databases)
    assert not match(task, task["sql"].replace("price", "year"), databases)
    (value,) = task["rows"][0]
    assert not match(task, f"SELECT {value}", databases)
    assert not match(task, f"SELECT {value} FROM drug LIMIT 1", databases)
    assert match(task, f"SELECT {value} FROM drug LIMIT 1", (databases[0], None))  # which the twin is for


def test_a_gold_query_that_does_not_run_is_an_error_of_the_task(databases):
    with pytest.raises(ValueError, match="does not run"):
        match({"sql": "SELECT nothing FROM drug"}, "SELECT id FROM drug WHERE id = 1", databases)
    with pytest.raises(ValueError, match='gold query as "sql"'):
        match({}, "SELECT id FROM drug WHERE id = 1", databases)


@pytest.mark.parametrize(
    ("reply", "rows", "share"),
    [
        ("Answer: 12.5", [(12.5,)], 1.0),
        ("It costs $1,234.50 a pack.", [(1234.5,)], 1.0),
        ("The answer is 12", [(12.5,)], 0.0),
        ("There are 12 of them", [(2,)], 0.0),
        ("一共有12种。", [(12,)], 1.0),
        ("共１２元", [(12,)], 1.0),
        ("答案：片剂", [("片剂",)], 1.0),
        ("It is a Tablet.", [("tablet",)], 1.0),
        ("It is a tabletop.", [("tablet",)], 0.0),
        ("Answer: Velovex; Bomadru", [("Velovex",), ("Bomadru",), ("Bomadru",)], 1.0),
        ("Answer: Velovex", [("Velovex",), ("Bomadru",)], 0.5),
        ("tablet, 12.50", [("tablet", 12.5)], 1.0),
        ("", [("tablet",)], 0.0),
        ("tablet " + "capsule " * 100, [("tablet",)], 0.0),
        ("anything", [(None,)], 0.0),
    ],
)
def test_an_answer_is_as_good_as_the_share_of_values_that_it_states(reply, rows, share):
    assert states_values(reply, rows) == share


def queried(databases, sql) -> Queries:
    queries = Queries(databases[0])
    queries.query(f'{{"sql": "{sql}"}}')
    return queries


def test_the_reward_is_the_result_and_a_little_for_the_answer(databases, task):
    right, wrong = queried(databases, task["sql"]), queried(databases, "SELECT name FROM drug WHERE id = 1")
    reward, answer = SqlReward(), f"Answer: {task['answer']}"
    assert reward.scores(task, right, answer, databases[1]) == {"reward": 1.2, "execution": 1.0, "answer": 1.0}
    assert reward.scores(task, right, None, databases[1]) == {"reward": 1.0, "execution": 1.0, "answer": 0.0}
    assert reward.scores(task, wrong, answer, databases[1]) == {"reward": 0.2, "execution": 0.0, "answer": 1.0}
    assert reward.scores(task, Queries(databases[0]), None)["reward"] == 0.0


def test_the_last_query_that_ran_counts(databases, task):
    queries = queried(databases, task["sql"])
    assert queries.query('{"sql": "DROP TABLE drug"}').startswith("error: DROP")
    assert queries.query("no json") == 'error: give {"sql": "SELECT ..."}'
    assert queries.query('{"sql": 1}').startswith("error: give")
    assert (queries.sql, queries.calls) == (task["sql"], 4)
    assert SqlReward().scores(task, queries, None)["execution"] == 1.0
    queries.query('{"sql": "SELECT id FROM drug WHERE id = 1"}')
    assert SqlReward().scores(task, queries, None)["execution"] == 0.0


def test_a_reward_model_judges_the_answer(databases, task):
    seen = []

    def model(completions, prompts, ground_truth):
        seen.append((completions, prompts, ground_truth))
        return [2.0]

    queries = queried(databases, task["sql"])
    scores = SqlReward(answer_weight=0.5, reward_model=model).scores(task, queries, "Answer: x")
    assert scores["answer"] == pytest.approx(0.8808, abs=1e-4)
    assert scores["reward"] == pytest.approx(1 + 0.5 * scores["answer"])
    assert seen == [(["Answer: x"], [[{"role": "user", "content": task["question"]}]], [task["answer"]])]


def test_a_missing_score_fails_the_rollout_and_weights_are_bounded(databases, task):
    reward = SqlReward(reward_model=lambda **_: [None])
    with pytest.raises(RewardUnavailableError):
        reward.scores(task, queried(databases, task["sql"]), "Answer: x")
    for weights in ({"execution_weight": 0.5}, {"answer_weight": 1.0}, {"answer_weight": -0.1}):
        with pytest.raises(UserError, match="_weight: "):
            SqlReward(**weights)
