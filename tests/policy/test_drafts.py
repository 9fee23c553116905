"""Guesses of the next tokens: what followed before, as long as it pays."""

from __future__ import annotations

import pytest

from mini_agentic_rl.policy.drafts import Drafts, Indexed, PassCost


def _free(longest=4):
    """Drafts for which a row costs nothing beside a pass."""
    drafts = Drafts(longest)
    for rows in (1, 10, 20):
        drafts.cost.observe(rows, 1.0)
    return drafts


def _tokens(guesses):
    return [None if guess is None else guess.tokens for guess in guesses]


def test_what_followed_the_last_tokens_before_is_guessed():
    assert _tokens(_free().guess([Indexed([1, 2, 3, 4, 5, 6, 9, 1, 2])], [4], 99)) == [(3, 4, 5, 6)]


def test_another_sequences_tokens_are_guessed_also_after_it_has_ended():
    drafts = _free()
    drafts.guess([Indexed([7, 8, 9, 10, 11])], [4], 99)
    assert _tokens(drafts.guess([Indexed([1, 7, 8])], [4], 99)) == [(9, 10, 11)]


def test_the_longer_match_counts_and_among_equal_ones_the_latest():
    drafts = _free()
    drafts.guess([Indexed([1, 2, 3, 4, 50]), Indexed([9, 3, 4, 60]), Indexed([8, 3, 4, 70])], [1, 1, 1], 99)
    assert _tokens(drafts.guess([Indexed([1, 2, 3, 4]), Indexed([5, 3, 4])], [1, 1], 99)) == [(50,), (70,)]


def test_no_more_is_guessed_than_there_is_room_for():
    indexed = Indexed([1, 2, 3, 4, 5, 6, 9, 1, 2])
    assert _tokens(_free().guess([indexed], [1], 99)) == [(3,)]
    assert _free().guess([indexed], [0], 99) == [None]
    assert Drafts(0).guess([indexed], [4], 99) == [None]


def test_all_guesses_together_stay_within_the_budget():
    found = _free().guess([Indexed([n, n + 1, n + 2, n + 3, n, n + 1]) for n in (10, 20, 30)], [4, 4, 4], 5)
    assert sum(len(guess.tokens) for guess in found if guess is not None) == 5


def test_nothing_is_guessed_before_the_cost_of_a_pass_is_known_or_where_every_row_costs_as_much_as_the_first():
    drafts = Drafts(4)
    assert drafts.guess([Indexed([1, 2, 3, 1, 2])], [4], 99) == [None]
    for rows in (1, 10, 20) * 50:
        drafts.cost.observe(rows, 0.1 * rows)
    assert drafts.guess([Indexed([1, 2, 3, 1, 2])], [4], 99) == [None]


def test_guesses_that_are_wrong_become_fewer_and_are_tried_again_at_some_time():
    drafts = Drafts(4)
    for rows in (1, 10, 20) * 20:
        drafts.cost.observe(rows, 1.0 + 0.1 * rows)

    def guess():
        return drafts.guess([Indexed([1, 2, 3, 4, 5, 6, 1, 2])], [4], 99)[0]

    first = guess()
    for _ in range(60):
        drafts.observe(first, 0)
    assert guess() is None
    assert any(guess() is not None for _ in range(1000))


def test_the_cost_of_a_pass_is_told_apart_by_its_rows():
    cost = PassCost()
    assert cost.share_of_row(8) is None
    for rows in (4, 9, 16, 32) * 100:
        cost.observe(rows, 0.040 + 0.002 * rows)
    assert cost.share_of_row(8) == pytest.approx(0.002 / (0.040 + 0.016), rel=0.01)


def test_the_table_forgets_the_older_half_and_not_more(monkeypatch):
    monkeypatch.setattr("mini_agentic_rl.policy.drafts._ENTRIES", 650)
    drafts = _free()
    drafts.guess([Indexed([1, 2, 3])], [1], 99)
    drafts.guess([Indexed(list(range(100, 500)))], [1], 99)
    assert _tokens(drafts.guess([Indexed([0, 1, 2])], [1], 99)) == [(3,)]
    for start in range(1_000, 4_000, 400):
        drafts.guess([Indexed(list(range(start, start + 400)))], [1], 99)
    assert drafts.guess([Indexed([0, 1, 2])], [1], 99) == [None]
