"""The client of a reward service: batches, refusals, outages, and what it sends."""

from __future__ import annotations

from typing import Any

import cloudpickle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mini_agentic_rl.rewards import RemoteReward, remote
from rewards.servers import serving


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_MAX_PAUSE", 0.01)


def length(item: dict[str, Any]) -> float:
    said = item["response"] if "response" in item else item["messages"][-1]["content"]
    return float(len(said))


class Service:
    """Scores a text by its length; refuses "bad" ones, and whole batches that hold one."""

    def __init__(self, outages: int = 0) -> None:
        self.outages = outages
        self.requests: list[int] = []
        self.items: list[dict[str, Any]] = []
        self.keys: list[str | None] = []

    def __call__(self, path: str, body: dict[str, Any], headers: dict[str, str]) -> tuple[int, Any]:
        items = body["items"]
        self.requests.append(len(items))
        self.items += items
        self.keys.append(headers.get("authorization"))
        if self.outages:
            self.outages -= 1
            return 503, {"error": "busy"}
        if any(item.get("response") == "bad" for item in items):
            return 422, {"error": "too long"}
        return 200, {"scores": [length(item) for item in items]}


def test_samples_are_scored_in_batches() -> None:
    service = Service()
    with serving(service) as url:
        function = RemoteReward(url + "/", batch_size=3, scale=0.5, api_key="secret")
        found = function(completions=["a", "bb", "ccc", "dddd", "eeeee"], prompts=["p"] * 5)
    assert found == [0.5, 1.0, 1.5, 2.0, 2.5]
    assert service.requests == [3, 2]
    assert service.items[0] == {"prompt": "p", "response": "a"}
    assert set(service.keys) == {"Bearer secret"}


def test_conversations_are_sent_whole() -> None:
    service = Service()
    with serving(service) as url:
        prompt = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
        answer = [{"role": "assistant", "content": None, "tool_calls": []}, {"role": "assistant", "content": "yes"}]
        assert RemoteReward(url)(completions=[answer], prompts=[prompt]) == [3.0]
    assert service.items == [{"messages": [*prompt, *answer]}]


def test_one_sample_that_is_refused_does_not_cost_the_others() -> None:
    service = Service()
    with serving(service) as url:
        function = RemoteReward(url)
        assert function(completions=["a", "bad", "ccc", "d"], prompts=["p"] * 4) == [1.0, None, 3.0, 1.0]
    assert function.errors == {"refused by the service": 1}


def test_an_outage_is_waited_out_and_a_long_one_is_counted() -> None:
    service = Service(outages=2)
    with serving(service) as url:
        assert RemoteReward(url, attempts=3)(completions=["a", "bb"]) == [1.0, 2.0]
    assert len(service.requests) == 3
    gone = RemoteReward(url, attempts=2)
    assert gone(completions=["a", "bb"]) == [None, None]
    assert gone.errors == {"the service failed": 2}


@pytest.mark.parametrize(
    "said", [{"scores": [1.0]}, {"scores": "high"}, {"points": 3}, [1.0, 2.0], "<html>", {"scores": [1.0, None]}]
)
def test_answers_that_are_no_scores_are_counted_and_never_zero(said: Any) -> None:
    with serving(lambda *request: (200, said)) as url:
        function = RemoteReward(url)
        found = function(completions=["a", "b"])
    assert found in ([None, None], [1.0, None])
    assert sum(function.errors.values()) == found.count(None)


def test_a_url_needs_its_scheme() -> None:
    with pytest.raises(ValueError, match="http://"):
        RemoteReward("localhost:8000")


def test_a_client_travels_to_other_processes() -> None:
    with serving(Service()) as url:
        function = RemoteReward(url)
        function(completions=["a"])
        assert cloudpickle.loads(cloudpickle.dumps(function))(completions=["abc"]) == [3.0]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=20),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=5,
)


def test_whatever_a_model_says_can_be_sent() -> None:
    completion = st.text(st.characters(), max_size=30) | st.lists(
        st.dictionaries(st.text(max_size=8), JSON), max_size=3
    )

    def answer(path: str, body: dict[str, Any], headers: dict[str, str]) -> tuple[int, Any]:
        return 200, {"scores": [1.0] * len(body["items"])}

    with serving(answer) as url:
        function = RemoteReward(url)

        @given(st.lists(completion, max_size=4))
        @settings(max_examples=40, deadline=None)
        def sent(completions: list[Any]) -> None:
            assert function(completions=completions) == [1.0] * len(completions)

        sent()
