"""The scheduler on a fake of the model pass, and fair shares between those who ask and between their requests."""

from __future__ import annotations

import pytest
from fake_engine import FakeEngine, alone, cost, sequences, token_at

from mini_agentic_rl.policy.drafts import Drafts


def test_sequences_are_admitted_in_order_and_no_more_than_may_run():
    engine = FakeEngine(max_running=2)
    requests = [engine.add([n, n + 1], 2, seed=n) for n in range(5)]
    engine.step()
    assert engine.scheduler.sequence_counts == (2, 3)
    finished = []
    while engine.step() is not None:
        finished += [n for n, asked in enumerate(requests) if asked.reason and n not in finished]
        assert engine.scheduler.sequence_counts[0] <= 2
    assert finished == [0, 1, 2, 3, 4]


def test_a_long_prompt_does_not_hold_up_an_answer_under_way():
    engine = FakeEngine(budget=8)
    early = engine.add([1, 2, 3], 6)
    engine.step()
    engine.add(range(20, 56), 1)
    while not early.reason:
        plan = engine.step()
        assert [segment.sequence for segment in plan.decode] == [early.sequence]
        assert cost(plan) == 8  # what decoding leaves of the budget goes to the prompt
    assert len(early.deltas) == 6


def test_a_prompt_that_finds_no_room_is_not_overtaken():
    engine = FakeEngine(blocks=6)
    engine.add(range(8), 4)
    engine.step()
    long = engine.add(range(30, 46), 1)
    short = engine.add([7, 8], 1)
    engine.step()
    assert engine.scheduler.sequence_counts == (1, 2)
    engine.run()
    assert long.reason == short.reason == "length"


def test_sequences_of_one_pass_with_one_history_are_twins_until_they_part():
    engine = FakeEngine(budget=12)
    same = [engine.add(range(10), 3, seed=4) for _ in range(2)]
    other = engine.add(range(10), 3, seed=5)
    engine.run()
    # The budget does not count twins. Three prompts alike, then three first tokens of which two are alike.
    assert [cost(plan) for plan in engine.plans] == [10, 2, 2]
    assert engine.plans[0].prefill[1].twin is engine.plans[0].prefill[0]
    assert [asked.tokens for asked in (*same, other)] == [alone(range(10), 3, seed) for seed in (4, 4, 5)]


def test_a_preempted_sequence_waits_in_front_of_those_that_came_later():
    engine = FakeEngine(blocks=4)
    old, young = engine.add([1] * 7, 9, seed=1), engine.add([2] * 7, 9, seed=2)
    late = engine.add([3], 1, seed=3)
    engine.run()
    passes = {
        name: [n for n, plan in enumerate(engine.plans) if asked.sequence in sequences(plan)]
        for name, asked in (("old", old), ("young", young), ("late", late))
    }
    assert passes["young"] != list(range(len(passes["young"])))  # it was preempted
    assert passes["late"][0] > passes["old"][-1]
    assert passes["late"][0] >= next(n for n in passes["young"] if n > passes["old"][-1])
    assert young.tokens == alone([2] * 7, 9, 2)


def test_a_sequence_for_which_alone_the_cache_is_too_small_ends_early():
    engine = FakeEngine(blocks=2)
    asked = engine.add([1, 2, 3], 20)
    engine.run()
    assert asked.reason == "length"
    assert asked.tokens == alone([1, 2, 3], 6, 0)  # eight cached tokens, and one drawn from the last of them
    assert engine.cache.available == 2


def test_a_pass_has_one_adapter_and_adapters_take_turns():
    engine, names = FakeEngine(), ["default", "other", None]
    requests = [engine.add([1, 2], 4, seed=seed, adapter=name) for seed, name in enumerate(names)]
    engine.run()
    assert [plan.adapter for plan in engine.plans] == names * 4
    assert all(one.request.adapter == plan.adapter for plan in engine.plans for one in sequences(plan))
    assert all(asked.reason == "length" for asked in requests)


@pytest.mark.parametrize("steps", [0, 3])
def test_a_cancelled_request_ends_before_the_next_pass_and_gives_its_blocks_back(steps):
    engine = FakeEngine(max_running=1)
    asked, left, waiting = engine.add([1, 2, 3], 9), engine.add([9], 1), engine.add([4, 5], 1)
    for _ in range(steps):
        engine.step()
    asked.sequence.cancelled = left.sequence.cancelled = True  # one that runs, and one that waits
    plan = engine.step()
    assert asked.reason == left.reason == "cancelled"
    assert asked.tokens == alone([1, 2, 3], steps, 0)
    assert sequences(plan) == [waiting.sequence]
    engine.run()
    assert engine.cache.available == engine.cache.total


def test_a_whole_answer_is_given_in_one_delta_also_when_it_is_cancelled():
    engine = FakeEngine()
    whole, broken = engine.add([1], 4, delivery="whole"), engine.add([2], 9, seed=2, delivery="whole")
    for _ in range(5):
        engine.step()
    broken.sequence.cancelled = True
    engine.run()
    assert [len(delta.token_ids) for delta in whole.deltas] == [4]
    assert [(delta.token_ids, delta.finish_reason) for delta in broken.deltas] == [
        (tuple(alone([2], 5, 2)), "cancelled")
    ]


def test_a_stop_token_and_the_context_end_a_sequence():
    engine = FakeEngine(context_length=6)
    stopped = engine.add([1, 2], 9, seed=1, stop_token_ids=(token_at(1, 3),))
    full = engine.add([1, 2], 9, seed=2)
    engine.run()
    assert (stopped.reason, len(stopped.tokens)) == ("stop", 2)
    assert (full.reason, len(full.tokens)) == ("length", 4)


def test_a_whole_answer_is_told_in_parts_where_the_version_changes_within_it():
    engine = FakeEngine()
    asked = engine.add([1, 2], 4, delivery="whole")
    for _ in range(2):
        engine.step()
    engine.versions["default"] += 1
    engine.scheduler.weights_changed("default")
    engine.run()
    assert [(len(delta.token_ids), delta.version) for delta in asked.deltas] == [(2, 0), (2, 1)]


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
