"""The learner: steps on judged sessions, baselines, age, exactly once, deletion, and sessions that wait."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from apps.learning.conftest import TOKENIZER
from mini_agentic_rl.apps.learning import (
    EndedSessions,
    SessionBook,
    SessionConflictError,
    SessionRecord,
    Sessions,
    UseFolder,
    UseLearner,
    UseSettings,
    use_loop,
)
from mini_agentic_rl.apps.learning.use import follow
from mini_agentic_rl.apps.learning.waiting import Baselines, JudgedSession, Lesson, choose
from mini_agentic_rl.gateway import MiniLLMServer, ServedPolicy
from mini_agentic_rl.policy import LearnerSettings, LoraSettings, Policy
from mini_agentic_rl.rewards import RelativeJudge
from mini_agentic_rl.store import LightningStore
from rewards.servers import serving
from tiny import tiny_model


@dataclass
class Use:
    """A gateway with sessions, the client of one key, and learners from its store."""

    gateway: MiniLLMServer
    policy: Policy
    store: LightningStore
    alice: Sessions
    folder: UseFolder

    def learner(self, policy: Policy | None = None, **settings: Any) -> UseLearner:
        return UseLearner(
            policy or self.policy,
            self.store,
            self.folder,
            ("tiny", "default"),
            settings=UseSettings(**{"min_sessions": 4} | settings),
            loop=use_loop(),
            learner=LearnerSettings(learning_rate=1e-2),
        )

    def talk(self, names: Any, *, key: str = "k", **options: Any) -> dict[str, str]:
        """Make a call in each session, all at once; return the answers."""

        async def call(http: httpx.AsyncClient, name: str) -> str:
            headers = {"X-Session-Id": name, "X-Session-Key": key, "X-Session-Consent": "yes"}
            body = {"model": "tiny", "messages": [{"role": "user", "content": "?"}], "max_tokens": 6} | options
            answer = await http.post("/chat/completions", json=body, headers=headers)
            return str(answer.raise_for_status().json()["choices"][0]["message"]["content"])

        async def call_all() -> list[str]:
            headers = {"authorization": "Bearer alice"}
            async with httpx.AsyncClient(base_url=self.gateway.endpoint, headers=headers, timeout=120) as http:
                return await asyncio.gather(*(call(http, name) for name in names))

        return dict(zip(names, asyncio.run(call_all()), strict=True))

    def reward(self, names: Any, best: str) -> None:
        """Reward sessions: 1 for those in `best`, else 0."""
        for name in names:
            self.alice.reward(name, float(name in best))


@pytest.fixture
def use(
    gateway: MiniLLMServer, served: ServedPolicy, file_store: LightningStore, alice: Sessions, folder: UseFolder
) -> Use:
    return Use(gateway, served.policy, file_store, alice, folder)


def turn(learner: UseLearner) -> dict[str, float] | None:
    return asyncio.run(learner.turn())


def step(learner: UseLearner) -> dict[str, float]:
    metrics = turn(learner)
    assert metrics is not None
    return metrics


def another_policy() -> Policy:
    return Policy.load(tiny_model(len(TOKENIZER)), lora=LoraSettings(r=4))


def test_rewards_are_learnt_step_by_step_and_the_server_samples_with_the_weights(use: Use, served: ServedPolicy):
    policy = another_policy()
    learner = use.learner(policy, min_sessions=12)
    for number in range(2):
        for name, text in use.talk([f"{number}-{n}" for n in range(12)]).items():
            use.alice.reward(name, sum(letter.isalpha() and letter.isascii() for letter in text) / 6)
        metrics = step(learner)
        assert follow(served, use.folder)
        assert served.policy.version == policy.version == number + 1
        assert not follow(served, use.folder)
    assert use.alice.show("0-0")["learnt_in"] == 1
    assert metrics["age/max"] == 0  # the server samples with the published weights and their version
    policy.close()


def test_a_lone_session_waits_until_its_key_has_a_baseline(use: Use):
    learner = use.learner(min_sessions=1)
    use.talk(["first"])
    use.alice.reward("first", 1.0)
    assert turn(learner) is None
    assert use.alice.show("first")["status"] == "judged"
    use.talk(["second"])
    use.alice.reward("second", 0.0)
    assert step(learner)["sessions"] == 2
    use.talk(["third"])
    use.alice.reward("third", 1.0)
    alone = step(learner)
    assert (alone["sessions"], alone["lessons/with_signal"]) == (1, 1)
    assert use.alice.show("third")["learnt_in"] == 2


def test_preferences_are_learnt_within_their_comparison(use: Use):
    learner = use.learner()
    use.talk("abcd")
    use.alice.prefer("a", "b")
    use.alice.prefer("c", "d")
    metrics = step(learner)
    assert (metrics["sessions"], metrics["lessons/with_signal"]) == (4, 4)
    assert {use.alice.show(name)["learnt_in"] for name in "abcd"} == {1}


def test_old_sessions_are_weighed_and_too_old_ones_left_out(use: Use):
    use.talk("abcdefgh")
    learner = use.learner(max_sessions=4, max_age=1)
    use.reward("abcdefgh", "aceg")
    first, second = step(learner), step(learner)
    assert (first["age/max"], second["age/max"]) == (0, 1)
    assert first["importance/mean"] == pytest.approx(1, abs=1e-3)
    assert second["importance/mean"] != pytest.approx(1, abs=1e-4)
    late = use.learner(max_age=0)
    use.talk("ijkl")
    use.reward("ijkl", "ik")
    use.policy.run(lambda: use.policy.model.versions.update(default=9))
    assert turn(late) is None
    assert "7 versions old" in use.alice.show("i")["skipped"]


def test_a_session_is_learnt_from_once_though_the_learner_is_killed_before_it_is_marked(
    use: Use, monkeypatch: pytest.MonkeyPatch
):
    use.talk("abcd")
    use.reward("abcd", "ac")
    policy = another_policy()
    killed = use.learner(policy)

    async def die(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(killed, "_settle", die)
    with pytest.raises(KeyboardInterrupt):
        turn(killed)
    assert use.alice.show("a")["status"] == "judged"
    policy.close()
    policy = another_policy()
    again = use.learner(policy)
    asyncio.run(again.resume())
    assert (policy.version, use.alice.show("a")["learnt_in"]) == (1, 1)
    assert turn(again) is None
    assert again.baselines.expected("none", []) is None
    policy.close()


def test_a_deleted_session_is_not_used_and_one_under_its_id_is_another(use: Use, monkeypatch: pytest.MonkeyPatch):
    learner = use.learner()
    use.talk("abcde")
    use.reward("abcde", "ac")
    assert use.alice.delete("e") is None
    settle = learner._settle

    async def settle_late(*given: Any) -> None:
        assert await asyncio.to_thread(use.alice.delete, "a") == 1
        await asyncio.to_thread(use.talk, ["a"])
        await settle(*given)

    monkeypatch.setattr(learner, "_settle", settle_late)
    assert step(learner)["sessions"] == 4
    assert [use.alice.show(name)["status"] for name in "ab"] == ["open", "learnt"]
    asyncio.run(learner.resume())
    assert use.alice.show("a")["learnt_in"] is None
    use.alice.reward("a", 1.0)
    use.alice.end("b")  # an agent that ends late
    assert use.alice.show("b")["learnt_in"] == 1
    with pytest.raises(SessionConflictError, match="would change nothing"):
        use.alice.reward("b", 1.0, replace=True)
    assert use.alice.delete("b") == 1


def test_greedy_calls_and_calls_after_the_reward_are_no_part_of_it(use: Use):
    learner = use.learner(min_sessions=2)
    use.talk(["greedy"], temperature=0)
    use.talk("ab")
    use.reward(["greedy", "a", "b"], "a")
    use.talk(["a"])
    assert step(learner)["lessons"] == 2
    assert "temperature 0" in use.alice.show("greedy")["skipped"]


def test_a_judge_scores_ended_sessions_beside_each_other(use: Use):
    use.talk("abcde")
    for name in "abcd":
        use.alice.end(name)
    scores = {f"conversation_{n}": 10 * (n % 2) for n in range(1, 5)}
    reply = {"choices": [{"message": {"role": "assistant", "content": json.dumps({"scores": scores})}}]}
    with serving(lambda path, body, headers: (200, reply)) as url:
        judge = RelativeJudge("brief", model="judge", base_url=url)

        async def judge_all() -> int:
            ended = EndedSessions(SessionBook(use.store), judge, group_size=4)
            assert await ended.look()
            return await ended.judged()

        assert asyncio.run(judge_all()) == 4
    assert [use.alice.show(name)["status"] for name in "abcde"] == ["judged"] * 4 + ["open"]
    assert sorted(use.alice.show(name)["rewards"][0]["reward"] for name in "abcd") == [0, 0, 1, 1]
    assert turn(use.learner()) is not None


# Many sessions that wait: a turn of the learner reads those that are new or ready, and no others.


@pytest.fixture
def reads(file_store: LightningStore, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The numbers of sessions that were read from the store, and of queries of their calls."""
    counted: Counter[str] = Counter()
    rollouts, spans = file_store.query_rollouts, file_store.query_spans

    async def query_rollouts(**given: Any) -> Any:
        page = await rollouts(**given)
        counted["sessions"] += len(page)
        return page

    async def query_spans(*given: Any, **more: Any) -> Any:
        counted["calls"] += 1
        return await spans(*given, **more)

    monkeypatch.setattr(file_store, "query_rollouts", query_rollouts)
    monkeypatch.setattr(file_store, "query_spans", query_spans)
    return counted


def calls_read(learner: UseLearner, reads: Counter[str]) -> int:
    """Take no step, and return how many sessions had their calls read."""
    reads.clear()
    assert turn(learner) is None
    return reads["calls"]


def test_sessions_that_wait_are_read_once_however_often_the_learner_looks(use: Use, reads: Counter[str]):
    learner = use.learner(min_sessions=2)
    names = [f"lone-{number}" for number in range(6)]
    for name in names:
        use.talk([name], key=name)
        use.alice.reward(name, 1.0)
    assert calls_read(learner, reads) == len(names)
    assert calls_read(learner, reads) == 0
    use.talk(["new"], key="lone-3")
    use.alice.reward("new", 0.0)
    reads.clear()
    assert step(learner)["sessions"] == 2
    assert reads["calls"] == 3  # the new one, and then both that are learnt from
    assert {use.alice.show(name)["status"] for name in ("new", "lone-3")} == {"learnt"}
    assert use.alice.show("lone-4")["status"] == "judged"
    assert calls_read(learner, reads) == 0


def test_a_learner_that_begins_again_passes_over_what_was_learnt_long_ago(
    use: Use, reads: Counter[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("mini_agentic_rl.apps.learning.learner._PAGE", 2)
    monkeypatch.setattr("mini_agentic_rl.apps.learning.learner._OVERLAP_SECONDS", 0.0)
    learner = use.learner()
    for names in ("abcd", "efgh", "ijkl"):
        use.talk(names)
        use.reward(names, "afk")
        step(learner)
    use.talk(["late"], key="its own")
    use.alice.reward("late", 1.0)
    again = use.learner()
    asyncio.run(again.resume())
    reads.clear()
    assert turn(again) is None
    assert reads["sessions"] <= 9, "twelve were learnt from, and four of them in the last step"


def test_a_waiting_session_follows_a_later_comparison_and_a_deletion(use: Use):
    learner = use.learner(min_sessions=2)
    use.talk(["old"], key="one")
    use.alice.reward("old", 0.5)
    assert turn(learner) is None
    use.talk(["new"], key="two")
    use.alice.score_group({"old": 0.0, "new": 1.0}, replace=True)
    assert step(learner)["sessions"] == 2
    learner.settings = UseSettings(min_sessions=3)
    use.talk("ab")
    use.reward("ab", "a")
    assert turn(learner) is None
    use.alice.delete("a")
    learner.settings = UseSettings(min_sessions=1)
    assert turn(learner) is None
    assert use.alice.show("b")["status"] == "judged"


def test_ended_sessions_are_read_a_bounded_number_at_a_time(
    use: Use, reads: Counter[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("mini_agentic_rl.apps.learning.job._PAGE", 2)
    monkeypatch.setattr("mini_agentic_rl.apps.learning.job._PAGES", 2)
    use.talk("abcdefg")
    for name in "abcdefg":
        use.alice.end(name)
    ended = EndedSessions(SessionBook(use.store), RelativeJudge(model="judge"), 100)  # no group is complete
    reads.clear()
    looks = 1
    while not asyncio.run(ended.look()):
        looks += 1
    assert looks == 4
    assert reads["sessions"] <= 4 * looks
    assert sum(map(len, ended._waiting.values())) == 7


def test_a_session_alone_in_a_comparison_is_left_out_once_all_are_read():
    record = SessionRecord("s", "owner", "", "ro-1", "at-1", 0.0, judged=True)
    waiting = [JudgedSession(record, 0.0, [Lesson(record, 1.0, "co-1", (), 0.0)])]
    assert choose(waiting, Baselines(), 8, all_read=False) == ([], {})
    assert choose(waiting, Baselines(), 8) == ([], {record.ids: "what it was compared with is gone"})
