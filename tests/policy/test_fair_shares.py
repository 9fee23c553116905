"""Shares of the sampler between those who ask, and between the requests of one of them."""

from __future__ import annotations

import pytest
from fake_engine import FakeEngine, alone, cost, sequences

from mini_agentic_rl.policy.drafts import Drafts

NEIGHBOURS = [("greedy", "another request"), ("neighbour", "its request")]


def greedy(engine, count, max_tokens=50, prompt=(1, 2, 3)):
    """`count` sequences of one request."""
    return [engine.add(prompt, max_tokens, seed=seed, asker=("greedy", "large")) for seed in range(count)]


def answered_within(engine, asked, passes):
    """The passes until a request is answered."""
    for taken in range(1, passes + 1):
        engine.step()
        if asked.reason:
            return taken
    raise AssertionError(f"it was not answered within {passes} passes")


@pytest.mark.parametrize("asker", NEIGHBOURS)
@pytest.mark.parametrize("passes_before", [1, 120])
def test_a_neighbour_is_answered_at_once_while_one_request_fills_the_cache(asker, passes_before):
    engine = FakeEngine(blocks=20)
    large = greedy(engine, 16)
    for _ in range(passes_before):
        engine.step()
    small = engine.add([50, 51, 52, 53, 54], 4, seed=77, asker=asker)
    answered_within(engine, small, 5)
    assert small.tokens == alone(range(5), 4, 77)
    engine.run()
    assert [one.tokens for one in large] == [alone(range(3), 50, seed) for seed in range(16)]
    assert engine.cache.available == engine.cache.total


@pytest.mark.parametrize("asker", NEIGHBOURS)
def test_a_neighbour_is_answered_at_once_while_one_request_has_all_places(asker):
    engine = FakeEngine(max_running=4)
    large = greedy(engine, 12)
    engine.step()
    small = engine.add([50, 51], 3, seed=77, asker=asker)
    answered_within(engine, small, 4)
    engine.run()
    assert [one.tokens for one in large] == [alone(range(3), 50, seed) for seed in range(12)]


def test_a_request_that_takes_its_time_gets_its_next_place_after_those_of_others():
    engine = FakeEngine(max_running=1)
    large = greedy(engine, 4, max_tokens=3)
    engine.step()
    small = engine.add([50, 51], 1, asker=("greedy", "small"))
    engine.run()
    last = [max(n for n, p in enumerate(engine.plans) if one.sequence in sequences(p)) for one in (*large, small)]
    assert last == [2, 6, 9, 12, 3]


def test_many_requests_of_one_key_leave_another_key_its_share():
    engine = FakeEngine(blocks=24, max_running=16)
    for number in range(40):
        engine.add([number, 1, 2], 40, seed=number, asker=("greedy", str(number)))
    for _ in range(30):
        engine.step()
    small = [engine.add([60 + n] * 5, 4, seed=n, asker=("neighbour", str(n))) for n in range(5)]
    for one in small:
        if not one.reason:
            answered_within(engine, one, 12)
    engine.run()


def test_those_that_hold_alike_do_not_take_the_cache_from_each_other_in_turn():
    engine = FakeEngine(blocks=16, context_length=200)
    both = [engine.add([1] * 30, 30, seed=n, asker=(f"rollout {n}", "")) for n in range(2)]
    engine.run()
    assert [one.tokens for one in both] == [alone([1] * 30, 30, n) for n in range(2)]
    assert sum(cost(plan) for plan in engine.plans) < 3 * 60


def test_a_lone_long_sequence_gives_way_only_to_what_is_far_shorter():
    engine = FakeEngine(blocks=10)
    engine.add([1] * 37, 4, asker=("rollout 1", ""))
    for _ in range(4):
        engine.step()
    engine.add([2] * 9, 1, asker=("rollout 2", ""))
    assert engine.step() is not None
    assert engine.scheduler.sequence_counts == (1, 1)
    far_shorter = engine.add([3], 1, asker=("rollout 3", ""))
    engine.run()
    assert far_shorter.reason == "length"


def test_short_prompts_come_in_beside_a_long_one_which_still_gets_half_of_each_pass():
    engine = FakeEngine(budget=8)
    long = engine.add(range(60), 1, asker=("a", ""))
    engine.step()
    for number in range(12):
        short = engine.add([70 + number] * 3, 1, asker=("b", str(number)))
        answered_within(engine, short, 2)
    assert long.reason == "length"


def measured(each):
    """Guesses nothing, and has measured passes of which each row takes so much of a second, beside one for the rest."""
    drafts = Drafts(0)
    for rows in (1, 2, 4, 8):
        drafts.cost.observe(rows, 1 + each * rows)
    return drafts


@pytest.mark.parametrize(
    ("each", "at_most"), [(1.0, 5), (0.0, 9)], ids=["where rows cost time", "not where they cost none"]
)
@pytest.mark.parametrize("asker", NEIGHBOURS)
def test_a_pass_takes_no_more_than_twice_as_long_for_the_rows_of_the_greediest(each, at_most, asker):
    engine = FakeEngine(max_running=12, drafts=measured(each))
    large = greedy(engine, 8)
    for _ in range(3):
        engine.step()
    assert len(sequences(engine.step())) == 8
    small = engine.add([50, 51], 6, seed=77, asker=asker)
    engine.step()
    rows = []
    while not small.reason:
        plan = engine.step()
        assert small.sequence in sequences(plan)
        rows.append(len(sequences(plan)))
    assert max(rows) <= at_most
    assert min(rows) > 1
    engine.run()
    assert [one.tokens for one in large] == [alone(range(3), 50, seed) for seed in range(8)]


def test_rollouts_that_have_one_sequence_each_are_all_in_a_pass():
    engine = FakeEngine(max_running=12, drafts=measured(1.0))
    for number in range(12):
        engine.add([number], 8, seed=number, asker=(f"rollout {number}", ""))
    engine.run()
    assert [len(sequences(plan)) for plan in engine.plans] == [12] * 8
