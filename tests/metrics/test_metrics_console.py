"""The console shows progress and the headline numbers, as a live view or as plain lines."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from mini_agentic_rl.metrics import ConsoleLogger, headline


def _shown(write, *, terminal: bool = False) -> str:
    """Return what a console shows of what `write` logs."""
    output = io.StringIO()
    console = Console(file=output, force_terminal=terminal, width=140, color_system=None, legacy_windows=False)
    with ConsoleLogger(console) as logger:
        write(logger)
    return output.getvalue()


def _run(logger: ConsoleLogger) -> None:
    logger.phase("evaluation before", 200)
    logger.advance(200)
    logger.phase("RL", 2)
    row = {"reward/mean": 0.25, "accuracy": 0.5, "mismatch/mean_abs": 0.001, "tokens_per_second": 21910.4, "x": 7}
    for step in (1, 2):
        logger.log(row, step=step)
        logger.advance()
    logger.note("[bold]checkpoint[/bold] written")


def test_plain_lines_hold_one_line_for_each_step():
    text = _shown(_run)
    assert "\x1b" not in text
    lines = text.splitlines()
    assert [line for line in lines if line.startswith("step ")] == [
        f"step {step}  reward 0.25  accuracy 50.0 %  21,910 tokens/s  mismatch 0.001" for step in (1, 2)
    ]
    assert lines[0] == "evaluation before: started, 200 to do"
    assert lines[1].startswith("evaluation before: 200 done in ")
    assert "[bold]checkpoint[/bold] written" in lines


def test_the_live_view_shows_phases_and_the_last_steps():
    text = _shown(_run, terminal=True)
    for expected in ("evaluation before", "200/200", "2/2", "50.0 %", "21,910", "checkpoint"):
        assert expected in text


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        ({"reward": 1.0, "reward/mean": 2.0}, 1.0),
        ({"reward/std": 3.0, "reward/mean": 2.0}, 2.0),
        ({"reward": None, "reward/std": 3.0, "rewarding": 4.0}, 3.0),
        ({"user/reward": 5.0, "reward/std": 3.0}, 3.0),
        ({"user/reward": 5.0}, 5.0),
        ({"rewarding": 4.0}, None),
    ],
)
def test_one_number_stands_for_a_family(metrics, expected):
    assert headline(metrics, "reward") == expected


@pytest.mark.parametrize("prefix", ["", "solver/"])
def test_a_distance_from_sampler_teacher_or_earlier_weights_is_not_shown_as_that_from_the_reference(prefix):
    others = {f"{prefix}{name}/kl": 0.5 for name in ("mismatch", "staleness", "teacher", "update")}
    assert headline(others, "kl") is None
    assert headline({**others, f"{prefix}kl": 0.25}, "kl") == 0.25


@pytest.mark.parametrize(("total", "done", "shown"), [(30, 12, "12/30"), (None, 3, "3/3")])
def test_a_phase_ends_where_it_stopped(total, done, shown):
    def write(logger):
        logger.phase("RL", total)
        logger.advance(done)

    assert shown in _shown(write, terminal=True)


def test_steps_of_the_imitation_are_told_from_those_of_reinforcement_learning():
    def write(logger):
        logger.log({"accuracy": 0.1}, step=0)
        logger.log({"sft/loss": 2.0}, step=1)
        logger.log({"solver/sft/loss": 2.0}, step=1)
        logger.log({"loss": 0.5}, step=1)

    assert _shown(write).splitlines() == [
        "step 0  accuracy 10.0 %",
        "step 1, SFT  loss 2",
        "step 1, SFT  loss 2",
        "step 1  loss 0.5",
    ]


@pytest.mark.parametrize("terminal", [False, True])
def test_held_out_measurements_are_told_apart_and_rows_without_a_headline_number_are_not_shown(terminal):
    def write(logger):
        logger.phase("training", 1)
        logger.log({"sft/pass_1": 0.2, "sft/pass_8": 0.7}, step=16)
        logger.log({"loss": 2.0, "accuracy/tokens": 0.25}, step=1)
        logger.log({"loss/eval": 1.5, "accuracy/eval": 0.75, "accuracy/tokens/eval": 0.5}, step=1)

    text = _shown(write, terminal=terminal)
    assert "16" not in text
    (measured,) = {line.strip() for line in text.splitlines() if "held out" in line}
    assert "1.5" in measured
    assert "75.0 %" in measured
    assert "50.0 %" not in measured  # the accuracy of tokens is another figure
    if not terminal:
        assert "step 1  token accuracy 25.0 %  loss 2" in text.splitlines()
