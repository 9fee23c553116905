"""Agents ask a served model for a long time and go away amid its answers: the server ends as it began.

An hour at full size. Memory, threads and descriptors are measured four times a second; what counts is the slope after
a warm-up, in which caches fill.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
import psutil
import pytest

from processes import PythonProcess

from .conftest import SIZE, Attack

AGENTS = 64
SECONDS = 3600.0
SHORT_S = 5.0
"""Longest time of a run at a small size."""
WARM_UP = 0.4
"""Share of the time before the slope is taken."""
GROWTH_MIB = 64.0
"""MiB that a server may grow after its warm-up over the whole time; 1 KiB lost a request would be hundreds an hour."""
ANSWER_S = 300.0
CLEAN = {400, 404, 408, 413, 422, 429, 503}


@dataclass
class Seen:
    """The answers of the agents, and the server's time, MiB, threads and descriptors."""

    answers: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    measured: list[tuple[float, float, int, int]] = field(default_factory=list)

    def look(self, server: psutil.Process) -> None:
        memory_mib = server.memory_info().rss / 2**20
        self.measured.append((time.monotonic(), memory_mib, server.num_threads(), server.num_fds()))

    def growth(self) -> list[float]:
        """Return the rise of straight lines through MiB, threads and descriptors after the warm-up."""
        rows = np.array(self.measured[int(len(self.measured) * WARM_UP) :])
        times = rows[:, 0] - rows[0, 0]
        return [float(np.polyfit(times, column, 1)[0] * times[-1]) for column in rows[:, 1:].T]


def request(rng: random.Random, model: str) -> dict[str, Any]:
    """Return a request: mostly sound, short or long, now and then one that has to be refused."""
    text = " ".join(rng.choices(["Count", "to", "ten", "é", "🙂", "<|im_end|>", "{", "x" * 50], k=rng.randint(1, 30)))
    messages = [{"role": "user", "content": text}]
    body: dict[str, Any] = {"model": model, "messages": messages, "max_tokens": rng.randint(1, 24), "stream": True}
    body |= rng.choice([{}, {}, {}, {"temperature": 0.0}, {"logprobs": True}, {"n": 2}, {"stop": ["a"]}, {"seed": 7}])
    if rng.random() < 0.05:
        body |= rng.choice([{"max_tokens": -1}, {"model": "no such"}, {"messages": []}, {"temperature": "hot"}])
    return body


async def agent(client: httpx.AsyncClient, number: int, url: str, model: str, end: float, seen: Seen) -> None:
    """Ask again and again until the end, and go away amid a third of the answers."""
    rng = random.Random(number)
    while time.monotonic() < end:
        body, leave = request(rng, model), rng.random() < 0.33
        async with client.stream("POST", f"{url}/chat/completions", json=body) as response:
            if response.status_code != 200:
                text = (await response.aread()).decode()
                seen.answers[f"status {response.status_code}"] += 1
                if response.status_code not in CLEAN or not json.loads(text)["error"]["message"]:
                    seen.wrong.append(f"{response.status_code} {text[:300]}")
                continue
            lines: list[str] = []
            async for line in response.aiter_lines():
                lines.append(line)
                if leave and len(lines) > 2 and rng.random() < 0.5:
                    break
        if leave:
            seen.answers["left amid it"] += 1
            continue
        seen.answers["whole"] += 1
        events = [line for line in lines if line.startswith("data: ")]
        if not events or events[-1] != "data: [DONE]":
            seen.wrong.append(f"a stream that does not end: {events[-1:]} for {body}")


async def soak(url: str, pid: int, seconds: float) -> Seen:
    """Let the agents ask for that long, and look at the server meanwhile."""
    unbounded = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(timeout=ANSWER_S, limits=unbounded) as client:
        model = (await client.get(f"{url}/models")).json()["data"][0]["id"]
        seen, server, end = Seen(), psutil.Process(pid), time.monotonic() + seconds
        agents = [asyncio.create_task(agent(client, number, url, model, end, seen)) for number in range(AGENTS)]
        while not all(task.done() for task in agents):
            if time.monotonic() < end:
                seen.look(server)
            await asyncio.wait(agents, timeout=0.25)
        for task in agents:
            task.result()
    return seen


@pytest.mark.timeout(int(2 * SECONDS * max(SIZE, 1)))
@pytest.mark.skipif(sys.platform != "linux", reason="descriptors and resident memory are read from /proc")
async def test_a_soak_with_disconnects(attack: Attack, tiny_folder: str) -> None:
    seconds = SECONDS * SIZE if SIZE > 0.1 else min(SECONDS * SIZE, SHORT_S)
    options = ("--model", tiny_folder, "--port", "0", "--cache-mib", "64")
    with PythonProcess("mini_agentic_rl", "serve", *options) as process:
        url = await asyncio.to_thread(process.wait_for_word, "http://")
        with attack.memory_of(process.pid):
            seen = await soak(url, process.pid, seconds)
        attack.tried += sum(seen.answers.values())
        attack.held += sum(seen.answers.values()) - len(seen.wrong)
        attack.causes.extend(seen.wrong)
        with attack.attempt("whole answers, and some that the client left"):
            assert seen.answers["whole"]
            assert seen.answers["left amid it"]
        with attack.attempt("the server is as before when all have gone"):
            async with httpx.AsyncClient(timeout=ANSWER_S) as client:
                assert (await client.get(f"{url}/models")).status_code == 200
        if seconds >= 60:  # a shorter time is all warm-up
            memory_mib, threads, descriptors = seen.growth()
            (_, first_mib, *_), (_, last_mib, *_) = seen.measured[0], seen.measured[-1]
            print(f"answers {dict(seen.answers)}; memory from {first_mib:.0f} to {last_mib:.0f} MiB")
            with attack.attempt(
                f"after the warm-up {memory_mib:.0f} MiB, {threads:.1f} threads, {descriptors:.1f} fds"
            ):
                assert memory_mib < GROWTH_MIB
                assert threads < 4
                assert descriptors < AGENTS / 4
        _, _, threads_seen, descriptors_seen = np.max(seen.measured, axis=0)
        assert threads_seen < 200
        assert descriptors_seen < 8 * AGENTS
