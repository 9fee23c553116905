"""Runs keep the answers of their measurements, and are compared by them problem by problem."""

from __future__ import annotations

import json

import pytest
from letters import TASKS, CountLetters, Letters, algorithm

from command_line import invoke
from mini_agentic_rl import Hook, Trainer, emit_reward
from mini_agentic_rl.algorithm import Measure
from mini_agentic_rl.algorithm.rollouts import lenient_check, question_hash
from mini_agentic_rl.metrics import MetricsLogger
from mini_agentic_rl.trainer import accuracy_rows, check_rows, compare_runs, load_run
from mini_agentic_rl.trainer.evaluations import add_answers, read_answers
from tiny import tiny_model, tiny_tokenizer


class NamedRewards(Hook):
    """A strict reward that says what it is made of."""

    async def on_rollout_end(self, *, rollout):
        reply = rollout.metadata["reply"]
        emit_reward(
            {"whole": 0.0, "lenient": float(len(reply) > 0), "length": len(reply)}, primary_key="whole", final=True
        )


def _row(question: str, correct: bool, *, lenient=None, sample=0, evaluation="after RL", answer=None, **more):
    return {
        "evaluation": evaluation,
        "hash": question_hash(question),
        "sample": sample,
        "correct": correct,
        "lenient": lenient,
        "answer": answer,
        **more,
    }


def _folder(path, rows):
    path.mkdir()
    add_answers(path / "evaluations.jsonl", rows, ())
    return str(path)


def test_a_run_keeps_every_answer_of_every_measurement_once(tmp_path):
    class Breaks(MetricsLogger):
        def log(self, metrics, *, step):
            if step == 2:
                raise KeyboardInterrupt

    settings = {"tasks_per_step": 2, "samples_per_prompt": 2, "eval_size": 3, "checkpoint_every": 1, "eval_every": 1}

    def fit(**more):
        trainer = Trainer(
            algorithm=algorithm(total_steps=3, **settings),
            hooks=[CountLetters(), NamedRewards()],
            n_runners=4,
            output_dir=tmp_path,
            **{"logger": MetricsLogger(), **more},
        )
        trainer.fit(Letters(), TASKS, val_dataset=TASKS)

    with pytest.raises(KeyboardInterrupt):
        fit(logger=Breaks())
    fit(resume=True)
    rows = read_answers(tmp_path / "evaluations.jsonl")
    assert [row["evaluation"] for row in rows[::3]] == ["before", "step 1", "step 2", "after RL"]
    assert [row["step"] for row in rows[::3]] == [0, 1, 2, 3]
    assert [row["hash"] for row in rows[:3]] == [question_hash(task) for task in TASKS[:3]]
    assert rows[0]["components"]["length"] == len(rows[0]["answer"] or "")
    assert {row["correct"] for row in rows} == {False}
    summary = json.loads((tmp_path / "summary.json").read_text())
    checks = {(row["name"], row["check"]): row for row in summary["checks"]}
    assert checks["before", "whole"]["mean"] == 0
    assert checks["after RL", "lenient"]["high"] <= 1
    assert checks["after RL", "length"]["count"] == 3
    assert "lenient" in (tmp_path / "report.html").read_text()


def test_the_report_says_why_a_rollout_of_a_measurement_failed(tmp_path):
    class Raises(Letters):
        async def rollout_async(self, task, resources, rollout):
            await super().rollout_async(task, resources, rollout)
            if task == TASKS[0]:
                raise LookupError("no such flight")
            return 1.0

    untrained = algorithm(total_steps=0, eval_size=2)
    Trainer(algorithm=untrained, output_dir=tmp_path, logger=MetricsLogger()).fit(Raises(), TASKS, val_dataset=TASKS)
    assert "attempt failed: the agent: LookupError: no such flight" in (tmp_path / "report.html").read_text()


def test_a_measurement_without_a_loop_is_kept_too_and_a_strict_pass_is_a_lenient_one(tmp_path):
    class TakesAny(Hook):
        async def on_rollout_end(self, *, rollout):
            emit_reward({"whole": 1.0, "lenient": 0.0}, primary_key="whole", final=True)

    tokenizer = tiny_tokenizer()
    trainer = Trainer(
        algorithm=Measure(tiny_model(len(tokenizer)), tokenizer, max_new_tokens=4, samples=2, temperature=1.0),
        hooks=[TakesAny()],
        n_runners=2,
        output_dir=tmp_path,
        logger=MetricsLogger(),
    )
    trainer.fit(Letters(), None, val_dataset=TASKS[:2])
    rows = read_answers(tmp_path / "evaluations.jsonl")
    assert [row["sample"] for row in rows] == [0, 1, 0, 1]
    assert [(row["correct"], row["lenient"]) for row in rows] == [(True, True)] * 4


@pytest.mark.parametrize(
    ("answer", "gold", "lenient"),
    [
        ("Answer: 42\n</tool_response>", "42", True),
        ("The answer is 41.", 42, False),
        (None, "42", False),
        ("42", None, None),
        ("42", float("nan"), None),
    ],
)
def test_the_lenient_check_reads_an_answer_with_junk_around_it(answer, gold, lenient):
    task = {"question": "q"} if gold is None else {"question": "q", "answer": gold}
    assert lenient_check(task, answer, {}) is lenient


def test_several_answers_give_pass_and_majority():
    rows = [
        _row("a", sample == 0, lenient=sample < 3, sample=sample, answer="7" if sample < 3 else "8")
        for sample in range(4)
    ] + [_row("b", False, lenient=False, sample=sample, answer=f"{sample}") for sample in range(4)]
    found = {row["name"]: row["accuracy"] for row in accuracy_rows(rows)}
    assert found == {"pass@1": 0.125, "pass@2": 0.25, "pass@4": 0.5, "maj@4": 0.5}
    assert [row["name"] for row in accuracy_rows(rows, "lenient")] == [
        *("pass@1, lenient", "pass@2, lenient", "pass@4, lenient")
    ]
    assert check_rows(rows)[0]["mean"] == 0.375


def test_runs_are_compared_on_what_both_have_by_both_checks(tmp_path):
    first = [_row(f"q{n}", False, lenient=n % 2 == 0) for n in range(20)]
    second = [_row(f"q{n}", n < 18, lenient=n % 2 == 0) for n in range(2, 22)]
    found = compare_runs([load_run(_folder(tmp_path / "a", first)), load_run(_folder(tmp_path / "b", second))])
    strict, lenient = found["comparisons"]
    assert (strict["problems"], strict["left_out"], strict["better"], strict["worse"]) == (18, [2, 2], 16, 0)
    assert strict["p"] == pytest.approx(2 / 2**16)
    assert strict["low"] < strict["difference"] < strict["high"]
    assert (lenient["difference"], lenient["p"]) == (0.0, 1.0)
    assert [run["strict"]["accuracy"] for run in found["runs"]] == [0.0, 0.8]


def test_a_question_that_comes_twice_is_two_problems(tmp_path):
    rows = [_row("q", True), _row("q", False)]
    found = compare_runs([load_run(_folder(tmp_path / "a", rows)), load_run(_folder(tmp_path / "b", rows[::-1]))])
    assert (found["comparisons"][0]["problems"], found["comparisons"][0]["better"]) == (2, 1)


def test_a_run_is_compared_by_its_own_held_out_tasks_where_transfer_was_measured_beside(tmp_path):
    """The measurement of strange stories comes last in a run, and one of the run before it has no task of them."""
    both = [_row("q", True), _row("strange", False, evaluation="after RL, transfer")]
    run = _folder(tmp_path / "run", [_row("q", False, evaluation="after SFT"), *both])
    assert load_run(run).evaluation == "after RL"
    assert load_run(f"{run}:after RL, transfer").evaluation == "after RL, transfer"
    assert load_run(_folder(tmp_path / "transfer alone", both[1:])).evaluation == "after RL, transfer"


def test_the_command_compares_a_run_with_itself_before_and_a_file_of_eval(tmp_path):
    rows = [_row(f"q{n}", False, evaluation="before") for n in range(12)] + [_row(f"q{n}", n > 1) for n in range(12)]
    folder = _folder(tmp_path / "run", rows)
    (tmp_path / "eval.json").write_text(json.dumps({"answers": rows[12:]}))
    shown = invoke("compare", f"{folder}:before", folder, tmp_path / "eval.json")
    assert shown.exit_code == 0, shown.output
    assert f"strict: {folder} is better on 12 problems that both have" in shown.stdout
    assert "+83.3" in shown.stdout
    found = json.loads(invoke("compare", f"{folder}:before", folder, tmp_path / "eval.json", "--json").stdout)
    assert [run["evaluation"] for run in found["runs"]] == ["before", "after RL", "after RL"]
    assert [row["p_holm"] for row in found["comparisons"]] == pytest.approx([2 * 2 / 2**10] * 2)
    same = invoke("compare", folder, tmp_path / "eval.json")
    assert "no difference of" in same.stdout


@pytest.mark.parametrize(
    ("runs", "complaint"),
    [
        ((), "give two runs or more"),
        (("a",), "give two runs or more"),
        (("a", "nowhere"), "nowhere does not exist"),
        (("a", "empty"), "empty kept no answers"),
        (("a", "other"), "have no problem in common"),
        (("a", "a"), "a is given twice"),
        (("a", "a:step 7"), "a has no measurement 'step 7': it has 'after RL'"),
        (("a", "torn"), "no answer of a measurement"),
        (("a", "torn/evaluations.jsonl"), "no answer of a measurement"),
        (("a", "bad.json"), "bad.json cannot be read"),
        (("a", "odd.json"), "odd.json holds no answers"),
    ],
)
def test_what_cannot_be_compared_is_one_line(tmp_path, monkeypatch, runs, complaint):
    monkeypatch.chdir(tmp_path)
    _folder(tmp_path / "a", [_row("q", True)])
    _folder(tmp_path / "other", [_row("r", True)])
    (tmp_path / "empty").mkdir()
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "evaluations.jsonl").write_text('{"evaluation": "x"')
    (tmp_path / "bad.json").write_text("[1")
    (tmp_path / "odd.json").write_text('{"answers": [1]}')
    result = invoke("compare", *runs)
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert result.stderr.count("\n") == 1
