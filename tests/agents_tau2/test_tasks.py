"""The tasks that the package carries."""

from __future__ import annotations

import json

import pytest

from mini_agentic_rl.recipes.tau2.episode import read_row
from mini_agentic_rl.recipes.tau2.tasks import DOMAINS, load_tau2


@pytest.mark.parametrize(
    ("domain", "train", "test"), [("airline", 30, 20), ("retail", 74, 40), ("telecom", 74, 40), ("mock", 4, 5)]
)
def test_train_and_test_share_no_task(domain, train, test):
    splits = [[row["id"] for row in load_tau2(domain, split)] for split in ("train", "test")]
    assert [len(split) for split in splits] == [train, test]
    assert set(splits[0]).isdisjoint(splits[1])
    assert set(splits[0] + splits[1]) == {row["id"] for row in load_tau2(domain, "base")}


@pytest.mark.parametrize("domain", DOMAINS)
def test_rows_are_plain_and_their_text_is_a_task_of_the_suite(domain):
    rows = list(load_tau2(domain, "train", 5, 1))
    assert json.loads(json.dumps(rows)) == rows
    assert [read_row(row)[0].id for row in rows] == [row["id"] for row in rows]
    assert {row["domain"] for row in rows} == {domain}
