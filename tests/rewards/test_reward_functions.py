"""The reward functions that need nothing but the text: what they give, and that no text breaks them."""

from __future__ import annotations

import asyncio
import math
import pickle
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mini_agentic_rl.errors import UserError
from mini_agentic_rl.rewards import (
    NAMES,
    AccuracyReward,
    FormatReward,
    FunctionReward,
    LengthPenaltyReward,
    Reward,
    RewardError,
    StepReward,
    WeightedSum,
    count_steps,
    has_answer_line,
    has_boxed_answer,
    has_thinking,
    is_correct,
    length_penalty,
    load_reward,
    load_rewards,
    weighted_sum,
)
from mini_agentic_rl.rewards.format import equations


def say(text: str | None, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def call(arguments: Any, name: str = "calculator", identity: str = "c1") -> dict[str, Any]:
    return say(None, tool_calls=[{"id": identity, "function": {"name": name, "arguments": arguments}}])


def result(text: str, identity: str = "c1") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": identity, "content": text}


@pytest.mark.parametrize(
    ("completion", "truth", "reward"),
    [
        ("Answer: 1,234", "1234", 1.0),
        ("Answer: (1, 'red')", (1, "red"), 1.0),
        ("Answer: 7", "8", 0.0),
        ("", "8", 0.0),
        ([say("so"), say("Answer: 8")], "8", 1.0),
        ([say([{"type": "text", "text": "Answer: 8"}])], "8", 1.0),
        ([say("Answer: 8", tool_calls=[{"function": {"name": "f"}}])], "8", 0.0),
        ([say("Answer: 8"), result("9")], "8", 0.0),
        ([], "8", 0.0),
    ],
)
def test_a_right_answer_of_any_kind_is_rewarded(completion: Any, truth: Any, reward: float) -> None:
    function = AccuracyReward()
    assert function(completions=[completion], prompts=["?"], ground_truth=[truth]) == [reward]
    assert not function.errors


def test_a_row_without_a_truth_has_no_reward_and_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    columns = {"ground_truth": ["8", "8"], "finish_reason": ["length", "stop"]}
    assert AccuracyReward()(completions=["Answer: 8", "Answer: 8"], **columns) == [0, 1], "one was cut off"
    function = AccuracyReward()
    assert function(completions=["8", "8", "8"], ground_truth=["8", None, " "]) == [1.0, None, None]
    assert function.errors == {"the row has no right answer": 2}
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1


def test_a_missing_column_is_told_and_not_rewarded_with_nothing() -> None:
    with pytest.raises(RewardError, match="'ground_truth'; the columns are: answer"):
        AccuracyReward()(completions=["8"], answer=["8"])
    assert AccuracyReward(truth="answer", right=2)(completions=["8"], answer=["8"]) == [2.0]


@pytest.mark.parametrize(
    ("has_form", "good", "bad"),
    [
        (has_answer_line, ["Answer: 5", "First this.\nanswer: 5\n"],
         ["Answer:", "5", "Answer: 5\nthat is it", "Answer: 5\nAnswer: 5", "The Answer: 5", ""]),
        (has_boxed_answer, ["so \\boxed{5}"], ["so \\boxed{ }", "\\boxed{5} or \\boxed{6}"]),
        (has_thinking, ["<think>hm</think> 5"],
         ["<think>hm</think>", "<think></think> 5", "5 <think>hm</think> 5", "<think>a</think> b <think>c</think> d"]),
    ],
)  # fmt: skip
def test_a_form_is_there_once_and_not_empty(has_form: Any, good: list[str], bad: list[str]) -> None:
    assert [has_form(text) for text in (*good, *bad)] == [True] * len(good) + [False] * len(bad)


def test_a_score_without_a_weight_is_ignored_and_a_bad_one_is_an_error() -> None:
    scores = {"a": 1.0, "b": 0.5, "c": math.nan}
    assert weighted_sum(scores, {"a": 1.0, "b": 0.2, "c": 0.0}) == pytest.approx(1.1)
    for weights, named in (({"c": 1.0}, "'c'"), ({"format": 0.1}, "format")):
        with pytest.raises(ValueError, match=named):
            weighted_sum(scores, weights)


def test_the_share_of_the_forms_that_hold_is_the_reward() -> None:
    text = "<think>hm</think>\nAnswer: 5"
    assert FormatReward("answer_line", "thinking", "boxed")(completions=[text]) == [pytest.approx(2 / 3)]
    assert FormatReward()(completions=[text, "5"]) == [1.0, 0.0]
    assert FormatReward(lambda said: said.isupper())(completions=["ABC", "abc"]) == [1.0, 0.0]
    with pytest.raises(ValueError, match="form must be one of"):
        FormatReward("xml")  # type: ignore[arg-type]


def test_length_costs_nothing_at_first_and_at_most_one() -> None:
    assert [length_penalty(n, free=10, limit=20) for n in (0, 10, 15, 20, 500)] == [0, 0, -0.5, -1, -1]
    with pytest.raises(ValueError, match="free"):
        length_penalty(5, free=20, limit=20)


def test_length_is_counted_in_the_unit_asked_for() -> None:
    said = {
        "completions": ["a b c d", [say("a b"), result("long " * 99), say("c")]],
        "completion_ids": [[1] * 15, [1] * 5],
    }
    assert LengthPenaltyReward(free=10, limit=20)(**said) == [-0.5, 0.0]
    assert LengthPenaltyReward(free=2, limit=4, unit="words", weight=0.5)(**said) == [-0.5, -0.25]
    assert LengthPenaltyReward(free=0, limit=7, unit="characters")(**said)[0] == -1
    assert LengthPenaltyReward(free=0, limit=10, count=lambda text: 5)(**said) == [-0.5, -0.5]
    with pytest.raises(RewardError, match="completion_ids"):
        LengthPenaltyReward(free=1, limit=2)(completions=["a"])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("12 * 30 = 360", {"12*30=360": True}),
        ("So 12 × 30 = $361.", {"12*30=361": False}),
        ("1. 3 + 4 = 7, then 7 x 2 = 14", {"3+4=7": True, "7*2=14": True}),
        ("- 3 + 4 = 7", {"3+4=7": True}),
        ("(1,000 + 500) / 3 = 500", {"(1000+500)/3=500": True}),
        ("10 / 3 = 3.33 and 10 / 3 = 3.34", {"10/3=3.33": True, "10/3=3.34": False}),
        ("2 + 2 = 4\n2 + 2 = 4", {"2+2=4": True}),
        ("12 + 30 = 42 * 2 = 84", {"12+30=42*2": False, "42*2=84": True}),
        ("x = 5, 7 = 7, 3 apples + 4 apples = 7 apples", {}),
        ("1 / 0 = 5", {}),
        ("-5 + 3 = -2", {"-5+3=-2": True}),
        ("0.1 + 0.2 = 0.3", {"0.1+0.2=0.3": True}),
    ],
)
def test_calculations_are_found_and_checked(text: str, found: dict[str, bool]) -> None:
    assert {equation.text: equation.right for equation in equations(text)} == found


def test_right_steps_are_rewarded_wrong_ones_cost_and_repetition_gains_nothing() -> None:
    function = StepReward(expected=2)
    texts = ["2 + 2 = 4\n4 * 2 = 8", "2 + 2 = 4", "2 + 2 = 4\n4 * 2 = 9", "2 + 2 = 4\n" * 9, "eight"]
    assert function(completions=texts) == [1.0, 0.5, 0.5, 0.5, 0.0]
    assert function(completions=["1 + 1 = 2\n" + "\n".join(f"1 + {n} = {n}" for n in range(9))]) == [0.1]
    marked = StepReward(expected=3, kind="marked")
    assert count_steps("Step 1: a\n2) b\n第三步：c\nstep 1: A\nso") == 3
    assert marked(completions=["1. a\n2. b", "nothing"]) == [pytest.approx(2 / 3), 0.0]


def test_any_callable_is_a_reward_function() -> None:
    async def late(text: str) -> float:
        await asyncio.sleep(0)
        return float(len(text))

    def trl_style(completions: list[str], ground_truth: list[str], **kwargs: Any) -> list[float]:
        return [float(said == truth) for said, truth in zip(completions, ground_truth, strict=True)]

    said = {"completions": ["ab", "c"], "prompts": ["p", "q"], "ground_truth": ["ab", "x"], "level": [3, 4]}
    assert FunctionReward(trl_style)(**said) == [1.0, 0.0]
    assert FunctionReward(len)(**said) == [2.0, 1.0]
    assert FunctionReward(late)(**said) == [2.0, 1.0]
    assert FunctionReward(lambda text, prompt, level: level if prompt == "p" else None)(**said) == [3.0, None]
    assert FunctionReward(lambda answer, ground_truth="": answer == ground_truth)(**said) == [1.0, 0.0]
    assert FunctionReward(lambda **columns: columns["level"])(**said) == [3.0, 4.0]
    with pytest.raises(RewardError, match="asks for 'colour'"):
        FunctionReward(lambda text, colour: 1.0)(**said)
    with pytest.raises(RewardError, match="takes no arguments"):
        FunctionReward(lambda: 1.0)


def test_one_failure_costs_one_reward_and_is_counted_never_zero() -> None:
    def fragile(text: str) -> Any:
        return {"bad": "seven", "nan": float("nan"), "none": None}.get(text, 1.0 / len(text))

    function = FunctionReward(fragile)
    assert function(completions=["ab", "", "bad", "nan", "none"]) == [0.5, None, None, None, None]
    assert function.errors == {
        "ZeroDivisionError": 1,
        "the function returned no number": 1,
        "the score is not finite": 1,
    }

    def broken(completions: list[str]) -> list[float]:
        raise OSError("gone")

    whole = FunctionReward(broken)
    assert whole(completions=["a", "b"]) == [None, None]
    assert whole.errors == {"OSError": 2}
    with pytest.raises(RewardError, match="must return a list of 2 rewards"):
        FunctionReward(lambda completions: [1.0])(completions=["a", "b"])


def test_a_weighted_sum_names_its_parts_and_is_none_where_a_part_is() -> None:
    total = WeightedSum([AccuracyReward(), FormatReward()], [1.0, 0.2])
    said = {"completions": ["Answer: 4", "4", "5"], "ground_truth": ["4", "4", None]}
    assert total(**said) == [1.2, 1.0, None]
    assert total.sums_and_parts(said["completions"], None, said)[1] == {
        "accuracy": [1.0, 1.0, None],
        "format": [1.0, 0.0, 0.0],
    }
    assert total.functions["accuracy"].errors == {"the row has no right answer": 2}
    assert WeightedSum([AccuracyReward(), FormatReward()], missing="skip")(**said)[2] == 0.0
    assert list(WeightedSum([len, len]).functions) == ["len", "len_2"]
    with pytest.raises(ValueError, match="weight"):
        WeightedSum([len], [1.0, 2.0])


def test_a_function_leaves_tasks_that_are_not_its_own_to_the_others(caplog: pytest.LogCaptureFixture) -> None:
    def math(completions: list[str], task: list[str], **kwargs: Any) -> list[float | None]:
        return [float(said == "4") if kind == "math" else None for said, kind in zip(completions, task, strict=True)]

    def code(text: str, task: str) -> float | None:
        return float("def" in text) if task == "code" else None

    said = {"completions": ["4", "5", "def f():", "hello"], "task": ["math", "math", "code", "chat"]}
    total = WeightedSum([math, code], [1.0, 0.5])
    assert total(**said) == [1.0, 0.0, 0.5, None]
    assert total.errors == {"no function gave a reward": 1}
    assert "no function gave a reward (math, code)" in caplog.text
    assert not any(function.errors for function in total.functions.values())

    def gone(text: str) -> float:
        raise OSError("the judge is gone")

    assert WeightedSum([math, gone])(**said) == [None] * 4, "what failed is not another's task"
    assert WeightedSum([math, gone], missing="skip")(**said) == [1.0, 0.0, None, None]


def test_columns_and_results_may_be_arrays_tensors_or_single_numbers() -> None:
    bfloats = torch.tensor([1.0, 0.5], dtype=torch.bfloat16, requires_grad=True)
    for result in (np.array([1.0, 0.5], dtype=np.float32), bfloats, [np.array([1.0]), torch.tensor(0.5)]):
        assert FunctionReward(lambda completions, result=result: result)(completions=["a", "b"]) == [1.0, 0.5]
    for single in (0.5, torch.tensor(0.5), np.array([0.5])):
        function = FunctionReward(lambda completions, single=single: single)
        assert function(completions=["a"]) == [0.5]
        with pytest.raises(RewardError, match="must return a list of 2 rewards"):
            function(completions=["a", "b"])
    assert FunctionReward(lambda text: torch.tensor(0.5))(completions=["a", "b"]) == [0.5, 0.5]
    truths = np.array([8, 9])
    assert AccuracyReward()(completions=np.array(["8", "8"]), ground_truth=truths) == [1.0, 0.0]
    assert AccuracyReward()(completions=["8", "8"], prompts=np.array(["a", "b"]), ground_truth=truths) == [1.0, 0.0]
    assert FunctionReward(lambda level: level)(completions=["a", "b"], level=torch.tensor([3, 4])) == [3.0, 4.0]


def test_trl_is_told_the_mean_of_each_part() -> None:
    told: dict[str, float] = {}
    seen: list[Any] = []

    def mine(completions: list[str], log_metric: Any) -> list[float]:
        seen.append(log_metric)
        return [1.0] * len(completions)

    WeightedSum([mine, FormatReward()])(completions=["Answer: 4", "4"], log_metric=told.__setitem__)
    assert told == {"reward/mine": 1.0, "reward/format": 0.5}
    assert seen == [told.__setitem__], "what is no column reaches a function as it was given"


def test_rewards_are_loaded_by_name_url_and_path(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        reward = load_reward(name)
        assert reward.__name__ == name
        assert reward(completions=["x"], ground_truth=["y"]) == [0.0]
    (tmp_path / "my_rewards.py").write_text("def shouting(text):\n    return text.isupper()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert load_reward("my_rewards:shouting")(completions=["A", "a"]) == [1.0, 0.0]
    assert load_reward("http://127.0.0.1:1/x").url == "http://127.0.0.1:1/x"  # type: ignore[attr-defined]
    total = load_rewards(["accuracy", "format=0.2", "my_rewards:shouting=-1", "http://h/?a=b"])
    assert list(total.weights.values()) == [1.0, 0.2, -1.0, 1.0]
    for bad in ("acuracy", "my_rewards:whispering", "no_such:thing", "format=much", "format=nan"):
        with pytest.raises(RewardError, match="reward: "):
            load_rewards([bad])


def test_a_reward_that_refuses_to_be_made_is_named_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    class Short(Reward):
        def __init__(self) -> None:
            raise UserError("must be above 0", setting="length")

    monkeypatch.setitem(sys.modules, "my_rewards", SimpleNamespace(Short=Short))
    message = r"^reward: 'my_rewards:Short' cannot be loaded: UserError: length: must be above 0$"
    with pytest.raises(RewardError, match=message):
        load_reward("my_rewards:Short")


async def test_an_event_loop_goes_on_while_a_reward_waits() -> None:
    gone_on = threading.Event()
    slow = FunctionReward(lambda text: float(gone_on.wait(60)))
    asyncio.get_running_loop().call_later(0.05, gone_on.set)
    assert await slow.in_thread(completions=["a"]) == [1.0]


REWARDS: list[Reward] = [
    AccuracyReward(),
    AccuracyReward(rel_tol=0.1, abs_tol=1),
    FormatReward("answer_line", "boxed", "thinking"),
    LengthPenaltyReward(free=10, limit=100, unit="words"),
    StepReward(expected=3),
    StepReward(kind="marked"),
]
TEXT = st.one_of(
    st.text(max_size=300),
    st.text(st.characters(), max_size=40),
    st.text("0123456789$%,./()[]{}\\=-+* boxedanswer:#<>think\n\"'", max_size=2000),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
MESSAGE = st.dictionaries(st.sampled_from(["role", "content", "tool_calls", "tool_call_id", "name"]), JSON, max_size=4)


@given(st.one_of(TEXT, st.lists(MESSAGE, max_size=4)), st.sampled_from(["12", "B", "[1, 2]", {"a": 1}, 0.5, "Paris"]))
@settings(max_examples=150, deadline=None)
def test_nothing_that_a_model_says_breaks_a_reward(completion: Any, truth: Any) -> None:
    for reward in REWARDS:
        before = sum(reward.errors.values())
        [score] = reward(completions=[completion], prompts=["?"], ground_truth=[truth])
        assert score is not None, reward.errors
        assert -1 <= score <= 1
        assert sum(reward.errors.values()) == before


@pytest.mark.parametrize(
    "text",
    [
        "1 + 1 = 2 " * 20_000, "(" * 100_000 + "=", "Step 1 " * 50_000, "\\boxed{" * 30_000, " " * 200_000 + "x",
        "<think>" * 40_000, "1" + " x " * 60_000, "{" * 100_000,
    ],
)  # fmt: skip
def test_text_made_to_be_slow_is_scored_in_time(text: str) -> None:
    assert is_correct("x+1", "1+x"), "the process that compares expressions is up"
    for reward in REWARDS:
        for completion in (text, [call(text), result(text), say(text)]):
            started = time.thread_time()
            assert reward(completions=[completion], ground_truth=["77"]) != [None]
            assert time.thread_time() - started < 5, reward.name


def test_rewards_travel_to_other_processes() -> None:
    for reward in [*REWARDS, load_reward("http://127.0.0.1:1"), WeightedSum([AccuracyReward()])]:
        again = cloudpickle.loads(cloudpickle.dumps(reward))
        assert again.name == reward.name
    assert pickle.loads(pickle.dumps(AccuracyReward()))(completions=["1"], ground_truth=["1"]) == [1.0]
