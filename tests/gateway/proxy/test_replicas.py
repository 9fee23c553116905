"""Which server of a model a rollout's calls go to."""

from __future__ import annotations

from collections import Counter

import pytest

from mini_agentic_rl.errors import UserError
from mini_agentic_rl.gateway.proxy.upstreams import DOWN_SECONDS, Replicas


def _entries(*urls):
    return [{"model_name": "policy", "base_url": url} for url in urls]


def _first(replicas, rollout_id):
    return replicas.ranked("policy", rollout_id)[0].base_url


def test_a_rollout_stays_with_its_server_and_rollouts_spread_evenly():
    replicas = Replicas(_entries("http://a", "http://b", "http://c"))
    homes = [_first(replicas, f"rollout-{n}") for n in range(900)]
    assert homes == [_first(replicas, f"rollout-{n}") for n in range(900)]
    assert all(240 < count < 360 for count in Counter(homes).values())


def test_only_the_rollouts_of_a_server_that_is_gone_move_and_they_spread():
    three = Replicas(_entries("http://a", "http://b", "http://c"))
    two = Replicas(_entries("http://a", "http://c"))
    moved = Counter()
    for n in range(900):
        before, after = _first(three, f"r{n}"), _first(two, f"r{n}")
        if before == "http://b":
            moved[after] += 1
        else:
            assert after == before
    assert min(moved.values()) > 90


def test_a_server_that_could_not_be_reached_is_asked_last_for_a_while():
    now = [0.0]
    replicas = Replicas(_entries("http://a", "http://b"), clock=lambda: now[0])
    home = replicas.ranked("policy", "r")[0]
    replicas.mark_down(home)
    assert replicas.ranked("policy", "r")[1] == home
    assert replicas.up()[home.base_url] == 0.0
    now[0] = DOWN_SECONDS + 0.1
    assert replicas.ranked("policy", "r")[0] == home
    replicas.mark_down(home)
    replicas.mark_up(home)
    assert replicas.ranked("policy", "r")[0] == home


def test_calls_outside_of_any_rollout_take_turns():
    replicas = Replicas(_entries("http://a", "http://b"))
    assert Counter(_first(replicas, None) for _ in range(10)) == {"http://a": 5, "http://b": 5}


@pytest.mark.parametrize(("field", "value"), [("token_ids", "llama.cpp"), ("timeout", 0)])
def test_a_field_that_cannot_work_is_named(field, value):
    with pytest.raises(UserError, match=f"model_list: {field}="):
        Replicas([{"model_name": "policy", "base_url": "http://a", field: value}])
