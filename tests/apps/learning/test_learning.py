"""The learner: steps on judged sessions, baselines, age, exactly once, deletion, and the versions that are served."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
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


def answers(gateway: MiniLLMServer, names: list[str], *, key: str = "k", **options: Any) -> dict[str, str]:
    """What each new session is answered, all asked at once."""

    async def ask() -> list[str]:
        async with httpx.AsyncClient(base_url=gateway.endpoint, timeout=120) as http:

            async def one(name: str) -> str:
                headers = {
                    "authorization": "Bearer alice",
                    "X-Session-Id": name,
                    "X-Session-Key": key,
                    "X-Session-Consent": "yes",
                }
                body = {"model": "tiny", "messages": [{"role": "user", "content": "?"}], "max_tokens": 6} | options
                answer = await http.post("/chat/completions", json=body, headers=headers)
                return str(answer.raise_for_status().json()["choices"][0]["message"]["content"])

            return await asyncio.gather(*map(one, names))

    return dict(zip(names, asyncio.run(ask()), strict=True))


def a_learner(policy: Policy, store: LightningStore, folder: UseFolder, **settings: Any) -> UseLearner:
    return UseLearner(
        policy,
        store,
        folder,
        ("tiny", "default"),
        settings=UseSettings(**{"min_sessions": 4} | settings),
        loop=use_loop(),
        learner=LearnerSettings(learning_rate=1e-2),
    )


def step(learner: UseLearner) -> dict[str, float]:
    metrics = asyncio.run(learner.turn())
    assert metrics is not None
    return metrics


def another_policy() -> Policy:
    return Policy.load(tiny_model(len(TOKENIZER)), lora=LoraSettings(r=4))


def score(text: str) -> float:
    return sum(letter.isalpha() and letter.isascii() for letter in text) / 6


def test_what_people_reward_is_learnt_step_by_step_and_the_server_samples_with_it(
    gateway: MiniLLMServer, served: ServedPolicy, file_store: LightningStore, alice: Sessions, folder: UseFolder
) -> None:
    policy = another_policy()
    learner = a_learner(policy, file_store, folder, min_sessions=12)
    for number in range(2):
        given = {name: score(text) for name, text in answers(gateway, [f"{number}-{n}" for n in range(12)]).items()}
        for name, reward in given.items():
            alice.reward(name, reward)
        metrics = step(learner)
        assert follow(served, folder)
        assert served.policy.version == policy.version == number + 1
        assert not follow(served, folder)
    assert alice.show("0-0")["learnt_in"] == 1
    # the server samples with what the learner has published, version and all
    assert metrics["age/max"] == 0
    policy.close()


def test_a_lone_session_waits_until_its_key_has_a_baseline(
    gateway: MiniLLMServer, served: ServedPolicy, file_store: LightningStore, alice: Sessions, folder: UseFolder
) -> None:
    learner = a_learner(served.policy, file_store, folder, min_sessions=1)
    answers(gateway, ["first"])
    alice.reward("first", 1.0)
    assert asyncio.run(learner.turn()) is None
    assert alice.show("first")["status"] == "judged"
    answers(gateway, ["second"])
    alice.reward("second", 0.0)
    both = step(learner)
    assert both["sessions"] == 2
    answers(gateway, ["third"])
    alice.reward("third", 1.0)
    alone = step(learner)
    assert (alone["sessions"], alone["lessons/with_signal"]) == (1, 1)
    assert alice.show("third")["learnt_in"] == 2


def test_preferences_and_answers_are_learnt_within_their_comparison(
    gateway: MiniLLMServer, served: ServedPolicy, file_store: LightningStore, alice: Sessions, folder: UseFolder
) -> None:
    learner = a_learner(served.policy, file_store, folder)
    answers(gateway, list("abcd"))
    alice.prefer("a", "b")
    alice.prefer("c", "d")
    metrics = step(learner)
    assert (metrics["sessions"], metrics["lessons/with_signal"]) == (4, 4)
    assert {alice.show(name)["learnt_in"] for name in "abcd"} == {1}


def test_old_sessions_are_weighed_and_too_old_ones_left_out(
    gateway: MiniLLMServer, served: ServedPolicy, file_store: LightningStore, alice: Sessions, folder: UseFolder
) -> None:
    answers(gateway, list("abcdefgh"))
    learner = a_learner(served.policy, file_store, folder, max_sessions=4, max_age=1)
    for name in "abcdefgh":
        alice.reward(name, float(name in "aceg"))
    first, second = step(learner), step(learner)
    assert (first["age/max"], second["age/max"]) == (0, 1)
    assert first["importance/mean"] == pytest.approx(1, abs=1e-3)
    assert second["importance/mean"] != pytest.approx(1, abs=1e-4)
    late = a_learner(served.policy, file_store, folder, max_age=0)
    answers(gateway, list("ijkl"))
    for name in "ijkl":
        alice.reward(name, float(name in "ik"))
    served.policy.run(lambda: served.policy.model.versions.update(default=9))
    assert asyncio.run(late.turn()) is None
    assert "7 versions old" in alice.show("i")["skipped"]


def test_a_session_is_learnt_from_once_though_the_learner_is_killed_before_it_says_so(
    gateway: MiniLLMServer,
    file_store: LightningStore,
    alice: Sessions,
    folder: UseFolder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers(gateway, list("abcd"))
    for name in "abcd":
        alice.reward(name, float(name in "ac"))
    policy = another_policy()
    killed = a_learner(policy, file_store, folder)

    async def die(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(killed, "_settle", die)
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(killed.turn())
    assert alice.show("a")["status"] == "judged"
    policy.close()
    policy = another_policy()
    again = a_learner(policy, file_store, folder)
    asyncio.run(again.resume())
    assert (policy.version, alice.show("a")["learnt_in"]) == (1, 1)
    assert asyncio.run(again.turn()) is None
    assert again.baselines.expected("none", []) is None
    policy.close()


def test_a_deleted_session_is_not_used_and_one_under_its_id_is_another(
    gateway: MiniLLMServer,
    served: ServedPolicy,
    file_store: LightningStore,
    alice: Sessions,
    folder: UseFolder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    learner = a_learner(served.policy, file_store, folder)
    answers(gateway, list("abcde"))
    for name in "abcde":
        alice.reward(name, float(name in "ac"))
    assert alice.delete("e") is None
    settle = learner._settle

    async def settle_late(*given: Any) -> None:
        assert await asyncio.to_thread(alice.delete, "a") == 1
        await asyncio.to_thread(answers, gateway, ["a"])
        await settle(*given)

    monkeypatch.setattr(learner, "_settle", settle_late)
    assert step(learner)["sessions"] == 4
    assert [alice.show(name)["status"] for name in "ab"] == ["open", "learnt"]
    asyncio.run(learner.resume())
    assert alice.show("a")["learnt_in"] is None
    alice.reward("a", 1.0)
    alice.end("b")  # an agent that ends late
    assert alice.show("b")["learnt_in"] == 1
    with pytest.raises(SessionConflictError, match="would change nothing"):
        alice.reward("b", 1.0, replace=True)
    assert alice.delete("b") == 1


def test_greedy_calls_and_calls_after_the_verdict_are_no_part_of_it(
    gateway: MiniLLMServer, served: ServedPolicy, file_store: LightningStore, alice: Sessions, folder: UseFolder
) -> None:
    learner = a_learner(served.policy, file_store, folder, min_sessions=2)
    answers(gateway, ["greedy"], temperature=0)
    answers(gateway, list("ab"))
    for name in ("greedy", "a", "b"):
        alice.reward(name, float(name == "a"))
    answers(gateway, ["a"])
    metrics = step(learner)
    assert metrics["lessons"] == 2
    assert "temperature 0" in alice.show("greedy")["skipped"]


def test_a_judge_scores_sessions_that_are_over_beside_each_other(
    gateway: MiniLLMServer, served: ServedPolicy, file_store: LightningStore, alice: Sessions, folder: UseFolder
) -> None:
    answers(gateway, list("abcde"))
    for name in "abcd":
        alice.end(name)
    scores = {f"conversation_{n}": 10 * (n % 2) for n in range(1, 5)}
    reply = {"choices": [{"message": {"role": "assistant", "content": json.dumps({"scores": scores})}}]}
    with serving(lambda path, body, headers: (200, reply)) as url:
        judge = RelativeJudge("brief", model="judge", base_url=url)

        async def judge_all() -> int:
            ended = EndedSessions(SessionBook(file_store), judge, group_size=4)
            assert await ended.look()
            return await ended.judged()

        assert asyncio.run(judge_all()) == 4
    assert [alice.show(name)["status"] for name in "abcde"] == ["judged"] * 4 + ["open"]
    assert sorted(alice.show(name)["rewards"][0]["reward"] for name in "abcd") == [0, 0, 1, 1]
    assert asyncio.run(a_learner(served.policy, file_store, folder).turn()) is not None


# Many sessions that wait: a turn of the learner reads those that are new or ready, and no others.

LONE = 6


@pytest.fixture
def reads(file_store: LightningStore, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many sessions were read from the store, and how many times their calls."""
    counted: Counter[str] = Counter()
    rollouts, spans = file_store.query_rollouts, file_store.query_spans

    async def query_rollouts(**given: Any) -> Any:
        found = await rollouts(**given)
        counted["sessions"] += len(found)
        return found

    async def query_spans(*given: Any, **more: Any) -> Any:
        counted["calls"] += 1
        return await spans(*given, **more)

    monkeypatch.setattr(file_store, "query_rollouts", query_rollouts)
    monkeypatch.setattr(file_store, "query_spans", query_spans)
    return counted


def turned(learner: Any, reads: Counter[str]) -> int:
    """Take no step, and return how many sessions had their calls read."""
    reads.clear()
    assert asyncio.run(learner.turn()) is None
    return reads["calls"]


def test_sessions_that_wait_are_read_once_however_often_the_learner_looks(
    gateway: MiniLLMServer,
    served: ServedPolicy,
    file_store: LightningStore,
    alice: Sessions,
    folder: UseFolder,
    reads: Counter[str],
) -> None:
    learner = a_learner(served.policy, file_store, folder, min_sessions=2)
    names = [f"lone-{number}" for number in range(LONE)]
    for name in names:
        answers(gateway, [name], key=name)
        alice.reward(name, 1.0)
    assert turned(learner, reads) == LONE
    assert turned(learner, reads) == 0
    answers(gateway, ["new"], key="lone-3")
    alice.reward("new", 0.0)
    reads.clear()
    assert step(learner)["sessions"] == 2
    assert reads["calls"] == 3  # the new one, and then both that are learnt from
    assert {alice.show(name)["status"] for name in ("new", "lone-3")} == {"learnt"}
    assert alice.show("lone-4")["status"] == "judged"
    assert turned(learner, reads) == 0


def test_a_learner_that_begins_again_passes_over_what_was_learnt_long_ago(
    gateway: MiniLLMServer,
    served: ServedPolicy,
    file_store: LightningStore,
    alice: Sessions,
    folder: UseFolder,
    reads: Counter[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mini_agentic_rl.apps.learning.learner._PAGE", 2)
    monkeypatch.setattr("mini_agentic_rl.apps.learning.learner._OVERLAP_SECONDS", 0.0)
    learner = a_learner(served.policy, file_store, folder)
    for first in range(0, 12, 4):
        batch = [f"s{number}" for number in range(first, first + 4)]
        answers(gateway, batch)
        for name in batch:
            alice.reward(name, float(name in ("s0", "s5", "s10")))
        step(learner)
    answers(gateway, ["late"], key="its own")
    alice.reward("late", 1.0)
    again = a_learner(served.policy, file_store, folder)
    asyncio.run(again.resume())
    reads.clear()
    assert asyncio.run(again.turn()) is None
    assert reads["sessions"] <= 9, "twelve were learnt from, and four of them in the last step"


def test_a_session_that_waits_is_found_again_when_a_new_one_is_compared_with_it(
    gateway: MiniLLMServer, served: ServedPolicy, file_store: LightningStore, alice: Sessions, folder: UseFolder
) -> None:
    learner = a_learner(served.policy, file_store, folder, min_sessions=2)
    answers(gateway, ["old"], key="one")
    alice.reward("old", 0.5)
    assert asyncio.run(learner.turn()) is None
    answers(gateway, ["new"], key="two")
    alice.score_group({"old": 0.0, "new": 1.0}, replace=True)
    assert step(learner)["sessions"] == 2


def test_what_is_deleted_while_it_waits_leaves_the_other_of_its_key_waiting(
    gateway: MiniLLMServer, served: ServedPolicy, file_store: LightningStore, alice: Sessions, folder: UseFolder
) -> None:
    learner = a_learner(served.policy, file_store, folder, min_sessions=3)
    answers(gateway, list("ab"))
    for name in "ab":
        alice.reward(name, float(name == "a"))
    assert asyncio.run(learner.turn()) is None
    alice.delete("a")
    learner.settings = UseSettings(min_sessions=1)
    assert asyncio.run(learner.turn()) is None
    assert alice.show("b")["status"] == "judged"


def test_sessions_that_are_over_are_found_a_bounded_number_at_a_time(
    gateway: MiniLLMServer,
    file_store: LightningStore,
    alice: Sessions,
    reads: Counter[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mini_agentic_rl.apps.learning.job._PAGE", 2)
    monkeypatch.setattr("mini_agentic_rl.apps.learning.job._PAGES", 2)
    names = [f"s{number}" for number in range(7)]
    answers(gateway, names)
    for name in names:
        alice.end(name)
    ended, looks = EndedSessions(SessionBook(file_store), RelativeJudge(model="judge"), 100), 1  # no group is complete
    reads.clear()
    while not asyncio.run(ended.look()):
        looks += 1
    assert looks == 4
    assert reads["sessions"] <= 4 * looks
    assert sum(map(len, ended._waiting.values())) == len(names)


def test_a_session_alone_in_a_comparison_is_left_out_once_all_are_read() -> None:
    record = SessionRecord("s", "owner", "", "ro-1", "at-1", 0.0, judged=True)
    waiting = [JudgedSession(record, 0.0, [Lesson(record, 1.0, "co-1", (), 0.0)])]
    assert choose(waiting, Baselines(), 8, all_read=False) == ([], {})
    assert choose(waiting, Baselines(), 8) == ([], {record.ids: "what it was compared with is gone"})
