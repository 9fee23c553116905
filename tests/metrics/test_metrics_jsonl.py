"""`metrics.jsonl` stays whole lines of valid JSON, in the order of the steps, through crashes and resumes."""

from __future__ import annotations

import json
import math
import os

import numpy as np
import pytest

from mini_agentic_rl.metrics import JsonlLogger, read_metrics, rows_until


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


def _log(path, steps, **arguments):
    with JsonlLogger(path, **arguments) as logger:
        logger.phase("RL")
        for step in steps:
            logger.log({"reward": step / 10}, step=step)


def test_a_row_can_be_read_before_the_file_is_closed(path):
    logger = JsonlLogger(path)
    logger.phase("SFT", 10)
    logger.log({"loss": np.float32(0.5), "tokens": 12}, step=3)
    (row,) = read_metrics(path)
    assert (row["phase"], row["step"], row["loss"], row["tokens"]) == ("SFT", 3, 0.5, 12)
    logger.close()
    logger.close()


def test_a_number_that_is_not_finite_is_written_as_null(path):
    with JsonlLogger(path) as logger:
        logger.log({"loss": math.nan, "kl": math.inf, "reward": 1.0}, step=1)
    row = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert (row["loss"], row["kl"], row["reward"]) == (None, None, 1.0)


@pytest.mark.parametrize("torn", [b'{"step": 3, "rew', b'{"step": 3}', b"\xff\x00\n", b"[]\n"])
def test_a_torn_last_line_is_cut_off(path, torn):
    _log(path, [1, 2])
    with path.open("ab") as file:
        file.write(torn)
    assert [row["step"] for row in read_metrics(path)] == [1, 2]
    _log(path, [3])
    assert [row["step"] for row in read_metrics(path)] == [1, 2, 3]


def test_resuming_cuts_off_what_came_after_the_checkpoint(path):
    _log(path, range(1, 8))
    _log(path, [6], keep_rows=rows_until(path, 5))
    rows = read_metrics(path)
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert path.read_bytes().count(b"\n") == len(rows)


def test_resuming_before_the_first_row_starts_an_empty_file(path):
    _log(path, [5, 6])
    _log(path, [], keep_rows=0)
    assert os.path.getsize(path) == 0


def test_reading_a_run_without_metrics_gives_no_rows(path):
    assert read_metrics(path) == []


def test_a_full_disk_is_told_and_costs_no_row_once_there_is_room(tmp_path, caplog):
    path = tmp_path / "metrics.jsonl"
    logger = JsonlLogger(path)
    real = os.dup(logger._file.fileno())
    with open("/dev/full", "w") as full:
        os.dup2(full.fileno(), logger._file.fileno())
    logger.log({"loss": 1.0}, step=0)
    logger.log({"loss": 2.0}, step=1)
    assert caplog.text.count("metrics not written") == 1
    os.dup2(real, logger._file.fileno())
    os.close(real)
    logger.log({"loss": 3.0}, step=2)
    logger.close()
    assert [row["loss"] for row in read_metrics(path)] == [1.0, 2.0, 3.0]
