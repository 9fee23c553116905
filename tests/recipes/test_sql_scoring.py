"""How the SQL agent is scored: results, answers, and what they are worth together."""

from __future__ import annotations

import pytest

from mini_agentic_rl.errors import UserError
from mini_agentic_rl.recipes.sql.data import MedicalQuestions, medical_database
from mini_agentic_rl.recipes.sql.reward import (
    Queries,
    RewardUnavailableError,
    SqlReward,
    execution_match,
    same_rows,
    states_values,
)
from mini_agentic_rl.recipes.sql.tool import SqlDatabase


@pytest.fixture(scope="module")
def databases(tmp_path_factory):
    folder = tmp_path_factory.mktemp("medical")
    pair = [SqlDatabase(medical_database(folder, twin=twin), immutable=True) for twin in (False, True)]
    yield pair
    for database in pair:
        database.close()


@pytest.fixture(scope="module")
def task():
    return next(row for row in MedicalQuestions("train", 40, difficulty=1) if row["template"] == "price")


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


def test_another_way_to_write_a_query_is_as_right(databases, task):
    other = task["sql"].replace("SELECT price", "SELECT d.price AS cost").replace("FROM drug", "FROM drug AS d")
    assert other != task["sql"]
    assert match(task, other, databases)
    assert not match(task, task["sql"].replace("price", "year"), databases)


def test_a_right_value_without_a_right_query_is_wrong(databases, task):
    (value,) = task["rows"][0]
    assert not match(task, f"SELECT {value}", databases)
    assert not match(task, f"SELECT {value} FROM drug LIMIT 1", databases)
    assert match(task, f"SELECT {value} FROM drug LIMIT 1", (databases[0], None))  # what the twin is there for


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


def asked(databases, sql) -> Queries:
    queries = Queries(databases[0])
    queries.query(f'{{"sql": "{sql}"}}')
    return queries


def test_the_reward_is_the_result_and_a_little_for_the_answer(databases, task):
    right, wrong = asked(databases, task["sql"]), asked(databases, "SELECT name FROM drug WHERE id = 1")
    reward, answer = SqlReward(), f"Answer: {task['answer']}"
    assert reward.scores(task, right, answer, databases[1]) == {"reward": 1.2, "execution": 1.0, "answer": 1.0}
    assert reward.scores(task, right, None, databases[1]) == {"reward": 1.0, "execution": 1.0, "answer": 0.0}
    assert reward.scores(task, wrong, answer, databases[1]) == {"reward": 0.2, "execution": 0.0, "answer": 1.0}
    assert reward.scores(task, Queries(databases[0]), None)["reward"] == 0.0


def test_the_last_query_that_ran_counts(databases, task):
    queries = asked(databases, task["sql"])
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

    queries = asked(databases, task["sql"])
    scores = SqlReward(answer_weight=0.5, reward_model=model).scores(task, queries, "Answer: x")
    assert scores["answer"] == pytest.approx(0.8808, abs=1e-4)
    assert scores["reward"] == pytest.approx(1 + 0.5 * scores["answer"])
    assert seen == [(["Answer: x"], [[{"role": "user", "content": task["question"]}]], [task["answer"]])]


def test_a_missing_score_fails_the_rollout_and_weights_are_bounded(databases, task):
    reward = SqlReward(reward_model=lambda **_: [None])
    with pytest.raises(RewardUnavailableError):
        reward.scores(task, asked(databases, task["sql"]), "Answer: x")
    for weights in ({"execution_weight": 0.5}, {"answer_weight": 1.0}, {"answer_weight": -0.1}):
        with pytest.raises(UserError, match="_weight: "):
            SqlReward(**weights)
