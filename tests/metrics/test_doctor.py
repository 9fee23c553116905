"""Each rule of the doctor finds its fault in a run that has it, and nothing in one that has not."""

from __future__ import annotations

import pytest
from rich.console import Console

from mini_agentic_rl.commands import TrainConfig
from mini_agentic_rl.metrics import RULES, ConsoleLogger, RolloutFacts, RunView, RunWatch, diagnose

HEALTHY = {
    "rollout/count": 32.0,
    "rollout/failed": 0.0,
    "rollout/unrewarded": 0.0,
    "rollout/tool_calls": 1.5,
    "rollout/truncated": 0.02,
    "groups/count": 4.0,
    "groups/with_signal": 3.0,
    "reward/mean": 0.4,
    "reward/std": 0.45,
    "entropy": 0.4,
    "mismatch/mean_abs": 0.01,
    "seconds/sampling": 30.0,
    "seconds/tail": 4.0,
    "machine/cores": 2.0,
    "machine/cores_free": 1.9,
}
STEPS = 12


def rows(**changes):
    """Return the rows of a run of `STEPS` steps: a healthy one, but for the metrics that are given, each as a number or
    as a function of the share of the run that is over."""
    found = []
    for step in range(1, STEPS + 1):
        over = (step - 1) / (STEPS - 1)
        given = {name.replace("__", "/"): value(over) if callable(value) else value for name, value in changes.items()}
        row = {"time": 1.0, "phase": "reinforcement learning", "step": step, **HEALTHY, **given}
        found.append({name: value for name, value in row.items() if value is not None})
    return found


def measured(*accuracies, name="accuracy"):
    """Return the rows of measurements that are spread over a run."""
    steps = [round(i * STEPS / (len(accuracies) - 1)) for i in range(len(accuracies))]
    found = zip(steps, accuracies, strict=True)
    return [{"phase": "evaluation: held out", "step": step, name: value} for step, value in found]


def named(findings):
    return {finding.rule for finding in findings}


FAULTS = {
    "equal_rewards": rows(groups__with_signal=1.0),
    "partial_reward": rows(reward__mean=0.1, reward__std=0.017, groups__with_signal=1.0),
    "nothing_to_select": [{"phase": "SFT", "step": 8, "sft/pass_1": 0.4, "sft/pass_8": 0.45}, *rows()],
    "same_answer": rows(rollout__same_answer=1.0, rollout__tool_calls=None),
    "reward_without_accuracy": rows(reward__mean=lambda over: 0.3 + 0.5 * over) + measured(0.5, 0.48, 0.51),
    "no_reward": rows(rollout__unrewarded=8.0),
    "failed_rollouts": rows(rollout__failed=10.0),
    "no_tool_calls": rows(rollout__tool_calls=0.0),
    "cut_answers": rows(rollout__truncated=0.5),
    "reward_not_accuracy": rows(reward__mean=lambda over: 0.3 + 0.5 * over) + measured(0.5, 0.55, 0.4),
    "accuracy_falls": rows(reward__mean=lambda over: 0.55 - 0.1 * over) + measured(0.88, 0.46),
    "mismatch_rises": rows(**{"mismatch/mean_abs": lambda over: 0.008 + 0.03 * over}),
    "steps_shortened": rows(**{"update/share": lambda over: 0.5 if over < 0.9 else 1.0}),
    "entropy_gone": rows(entropy=lambda over: 0.6 * (1 - over) + 0.01),
    "slow_tail": rows(seconds__tail=20.0),
    "shared_machine": rows(machine__cores_free=0.9),
}


@pytest.mark.parametrize("rule", FAULTS)
def test_a_fault_is_found_and_no_other_one(rule):
    (finding,) = diagnose(RunView.of_rows(FAULTS[rule], eval_size=400))
    assert finding.rule == rule
    assert finding.title
    assert finding.seen
    assert finding.settings or rule in ("no_reward", "shared_machine")
    of_python = {"emit_reward", "warm_start"}
    assert set(finding.settings) <= {*TrainConfig.settings(), *of_python}, "settings of the command"
    assert set(FAULTS) == {rule.__name__ for rule in RULES}, "every rule is tried"


def test_nothing_is_found_in_a_healthy_run_or_before_its_first_step():
    run = [*rows(reward__mean=lambda over: 0.3 + 0.5 * over), *measured(0.5, 0.48, 0.65)]
    assert diagnose(RunView.of_rows(run, eval_size=200)) == []
    assert diagnose(RunView.of_rows([])) == []
    assert diagnose(RunView.of_rows([{"phase": "SFT", "step": 3, "sft/loss": 1.0, "sft/entropy": 0.001}])) == []


@pytest.mark.parametrize(
    ("reward", "spread", "advice"),
    [(0.0, 0.0, "Take easier tasks"), (1.0, 0.0, "Take harder tasks"), (0.5, 0.5, "Take tasks that are solved now")],
)
def test_the_advice_on_equal_rewards_depends_on_what_was_earned(reward, spread, advice):
    run = rows(groups__with_signal=0.0, reward__mean=reward, reward__std=spread)
    (finding,) = diagnose(RunView.of_rows(run))
    assert finding.advice.startswith(advice)
    assert "48" not in finding.seen  # the last five steps count
    assert "20 of 20 groups of the last 5 steps" in finding.seen


def test_a_fall_of_the_accuracy_within_chance_is_none():
    run = [*rows(reward__mean=lambda over: 0.3 + 0.5 * over), *measured(0.5, 0.45)]
    assert named(diagnose(RunView.of_rows(run, eval_size=50))) == {"reward_without_accuracy"}
    assert named(diagnose(RunView.of_rows(run, eval_size=2000))) == {"reward_not_accuracy"}


def test_rounding_of_a_policy_that_is_sure_of_nothing_is_no_mismatch():
    learning = (0.048, 0.058, 0.057, 0.042, 0.041, 0.096, 0.026, 0.068, 0.053, 0.086, 0.045, 0.055)  # a real run's
    at = iter(learning)
    walked = [{**row, "mismatch/mean_abs": next(at, 0.05), "entropy": 0.5} for row in rows()]
    assert named(diagnose(RunView.of_rows(walked))) == set()
    unsure = rows(**{"mismatch/mean_abs": 0.055, "entropy": 3.3})
    assert diagnose(RunView.of_rows(unsure)) == []
    assert named(diagnose(RunView.of_rows(rows(**{"mismatch/mean_abs": 0.12, "entropy": 3.3})))) == {"mismatch_rises"}


def test_steps_that_are_short_only_while_the_optimizer_is_fresh_are_as_they_should_be():
    run = rows(**{"update/share": lambda over: 0.2 if over < 0.1 else 1.0})
    assert diagnose(RunView.of_rows(run)) == []
    first = diagnose(RunView.of_rows(run[:3]))
    assert named(first) == {"steps_shortened"}
    assert "2 of the last 3 steps" in first[0].seen
    assert "20 %" in first[0].seen


def test_the_accuracy_before_an_imitation_is_not_what_training_started_from():
    start = [{"phase": "evaluation: before", "step": 0, "accuracy": 0.9}]
    run = [*start, *measured(0.4, 0.5), *rows(reward__mean=lambda over: 0.3 + 0.5 * over)]
    assert diagnose(RunView.of_rows(run, eval_size=400)) == []


def test_rollouts_stand_in_for_metrics_that_an_older_run_lacks():
    without = {"rollout__count": None, "rollout__unrewarded": None, "rollout__tool_calls": None}
    old = rows(**without, rollout__failed=None)
    silent = [RolloutFacts(f"ro-{i}", reward=1.0, offered_tools=True) for i in range(20)]
    lost = [RolloutFacts(f"ro-x{i}", reward=None) for i in range(6)]
    found = {one.rule: one for one in diagnose(RunView.of_rows(old, rollouts=[*silent, *lost]))}
    assert set(found) == {"no_tool_calls", "no_reward"}
    assert found["no_reward"].rollouts == ("ro-x0", "ro-x1", "ro-x2")
    failed = [RolloutFacts(f"ro-{i}", succeeded=False, why="KeyError: 'x'") for i in range(6)]
    (finding,) = diagnose(RunView.of_rows(old, rollouts=failed))
    assert "most often: KeyError: 'x'" in finding.seen


def test_of_several_adapters_the_one_with_the_fault_is_named():
    shared = {"groups/count": None, "groups/with_signal": None, "reward/mean": 0.4, "entropy": None}
    each = {f"{name}/groups/count": 4.0 for name in ("writer", "critic")}
    each |= {f"{name}/reward/std": 0.4 for name in ("writer", "critic")}
    each |= {f"{name}/reward/mean": 0.4 for name in ("writer", "critic")}
    each |= {"writer/groups/with_signal": 3.0, "critic/groups/with_signal": 0.0}
    run = [{name: value for name, value in {**row, **shared, **each}.items() if value is not None} for row in rows()]
    (finding,) = diagnose(RunView.of_rows(run))
    assert (finding.rule, finding.adapter) == ("equal_rewards", "critic")
    slow = [{**row, "seconds/tail": 20.0} for row in run]
    assert {finding.rule: finding.adapter for finding in diagnose(RunView.of_rows(slow))}["slow_tail"] == ""


def test_numbers_that_are_none_or_not_finite_are_passed_over():
    run = rows(entropy=lambda over: float("nan") if over > 0.5 else 0.4)
    run[3]["reward/mean"] = None
    assert diagnose(RunView.of_rows(run)) == []


def test_low_entropy_is_no_fault_once_the_tasks_are_solved():
    learned = rows(entropy=lambda over: 0.6 * (1 - over) + 0.01, reward__mean=lambda over: 0.3 + 0.65 * over)
    assert "entropy_gone" not in named(diagnose(RunView.of_rows(learned)))


def test_a_watch_finds_the_same_as_a_look_at_all_rows():
    for run in FAULTS.values():
        watch, last = RunWatch(), None
        for row in run:
            last = watch.add(row) or last
        assert named(last or []) == named(diagnose(RunView.of_rows(run)))


def test_a_watch_keeps_a_bounded_part_of_a_long_run():
    watch = RunWatch()
    for step in range(400):
        found = watch.add({"phase": "", "step": step, **HEALTHY, "entropy": 0.5 if step < 5 else 0.01})
    assert named(found or []) == {"entropy_gone"}
    assert len(watch.view.steps) < 60


def logged(run, *, terminal):
    console = Console(force_terminal=terminal, record=True, width=150, file=open("/dev/null", "w"))  # noqa: SIM115
    with ConsoleLogger(console) as logger:
        logger.phase("reinforcement learning", STEPS)
        for row in run:
            numbers = {name: value for name, value in row.items() if isinstance(value, float) and name != "time"}
            logger.log(numbers, step=row["step"])
    return console.export_text()


@pytest.mark.parametrize("terminal", [True, False])
def test_the_console_shows_what_the_doctor_finds_while_a_run_goes_on(terminal):
    text = logged(FAULTS["equal_rewards"], terminal=terminal)
    assert "Most groups teach nothing: in " in text
    assert "doctor" not in logged(rows(), terminal=terminal)


def test_a_finding_is_one_line_of_a_log_and_not_one_each_step():
    assert logged(FAULTS["shared_machine"], terminal=False).count("Other programs use the processor") == 1
