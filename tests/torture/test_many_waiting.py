"""A learner from use beside a hundred thousand judged sessions: what a turn costs follows from what is new or ready."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from mini_agentic_rl.apps.learning import Sessions, UseFolder, UseLearner, UseSettings, use_loop
from mini_agentic_rl.gateway import ServedPolicy, SessionSettings
from mini_agentic_rl.policy import LearnerSettings, LoraSettings
from mini_agentic_rl.store import SqlLightningStore
from tiny import tiny_model, tiny_tokenizer

from .conftest import SIZE, Attack

WHOLE = 100_000
KEY = "the key of one"
TURN_S = 0.5
"""The longest that a turn may take which finds nothing new, on a machine of its own."""
STEP_SESSIONS = 8


def judged(url: str, name: str, key: str, reward: float) -> None:
    """Have a session make one call, and judge it."""
    from openai import OpenAI

    with Sessions(url, api_key="alice") as sessions:
        opened = sessions.open(name, key=key, consent=True)
        client = OpenAI(base_url=opened.base_url, api_key="alice")
        asked = [{"role": "user", "content": "?"}]
        client.chat.completions.create(model="tiny", messages=asked, max_tokens=4)  # type: ignore[arg-type]
        sessions.reward(name, reward)


def copied(path: Path, count: int) -> None:
    """Copy the only session so many times, each under a key of its own; the older half has been learnt from."""
    numbers = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})"
    learnt = f'CASE WHEN i > {count // 2} THEN replace({{}}, \'"owner"\', \'"learnt":1,"owner"\') ELSE {{}} END'
    renamed = f"replace(metadata_json, '{KEY}', 'key ' || i)"
    with closing(sqlite3.connect(path)) as connection:
        for table in ("agl_rollouts", "agl_attempts", "agl_spans"):
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})") if row[1] != "number"]
            changed = {"rollout_id": "printf('se-%032x', i)", "attempt_id": "printf('at-%032x', i)"}
            if table == "agl_rollouts":
                changed |= {
                    "metadata_json": learnt.format(renamed, renamed),
                    "start_time": "start_time - i",
                    "end_time": "end_time - i",
                }
            values = ", ".join(changed.get(name, name) for name in columns)
            # Joined with the rows of the one session alone: what is copied is not copied again.
            connection.execute(
                f"{numbers} INSERT INTO {table} ({', '.join(columns)}) SELECT {values} FROM n, "
                f"(SELECT * FROM {table} ORDER BY number LIMIT (SELECT count(*) FROM {table}))"
            )
        connection.commit()


@pytest.mark.skipif(SIZE < 1, reason="few sessions are in tests/sessions/test_many_waiting.py; make torture has many")
def test_a_learner_beside_many_sessions_that_wait(attack: Attack, tmp_path: Path) -> None:
    path, tokenizer = tmp_path / "sessions.db", tiny_tokenizer()
    store = SqlLightningStore(path)
    count = attack.times(WHOLE)
    served = ServedPolicy.load(tiny_model(len(tokenizer)), tokenizer, lora=LoraSettings(r=4), name="tiny")
    with served.serve(store=store, api_keys=["alice"], sessions=SessionSettings()) as gateway:
        judged(gateway.endpoint, "one", KEY, 1.0)
        copied(path, count)

        def new_learner() -> UseLearner:
            return UseLearner(
                served.policy,
                store,
                UseFolder(tmp_path / "use"),
                ("tiny", "default"),
                settings=UseSettings(min_sessions=STEP_SESSIONS),
                loop=use_loop(),
                learner=LearnerSettings(),
            )

        def turn() -> dict[str, float] | None:
            began = time.monotonic()
            found = asyncio.run(learner.turn())
            print(f"turn: {time.monotonic() - began:.3f} s")
            return found

        learner = new_learner()
        with attack.attempt(f"of {count} sessions half are read, once"):
            assert turn() is None
            assert len(learner._waiting) == 1 + count // 2
        for number in range(10):
            with attack.attempt(("nothing new", number), limit_s=TURN_S):
                assert turn() is None
        for number in range(STEP_SESSIONS):
            judged(gateway.endpoint, f"new-{number}", "another key", float(number % 2))
        with attack.attempt("a step"):
            found = turn()
            assert found is not None
            assert found["sessions"] == STEP_SESSIONS
        learner = new_learner()
        with attack.attempt("a learner that begins again"):
            asyncio.run(learner.resume())
            assert turn() is None
            assert len(learner._waiting) == 1 + count // 2
    served.close()
    asyncio.run(store.close())
