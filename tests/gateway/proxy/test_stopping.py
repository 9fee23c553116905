"""A program that serves an `LLMProxy` and is asked to end: answers under way get their time, and no more."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest

from .fake_upstream import chunk

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="signals are those of Unix: how a proxy stops is left unchecked"
)

SERVES = """
import asyncio, sys
from mini_agentic_rl import LLMProxy
async def main():
    proxy = LLMProxy(model_list=[{"model_name": "policy", "base_url": sys.argv[1]}])
    await proxy.start()
    print(proxy.endpoint, flush=True)
    await proxy.run_forever(drain_seconds=float(sys.argv[2]))
    print("stopped", flush=True)
asyncio.run(main())
"""
CLEANS_UP = """
import asyncio, sys
from mini_agentic_rl import LLMProxy
from mini_agentic_rl.processes import stops_cleanly
async def main():
    proxy = LLMProxy(model_list=[{"model_name": "policy", "base_url": sys.argv[1]}])
    await proxy.start()
    print(proxy.endpoint, flush=True)
    try:
        await asyncio.sleep(600)
    finally:
        await proxy.stop(float(sys.argv[2]))
with stops_cleanly():
    asyncio.run(main())
"""
BODY = {"model": "policy", "messages": [{"role": "user", "content": "Count."}], "stream": True}


@contextlib.contextmanager
def program(source: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    with subprocess.Popen(
        [sys.executable, "-c", source, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def events(url: str, process: subprocess.Popen[str]) -> int:
    """Read a stream whose server is asked to end after the first event; return how many events came."""
    with httpx.stream("POST", f"{url}/chat/completions", json=BODY, timeout=30, trust_env=False) as answer:
        lines = (line for line in answer.iter_lines() if line.startswith("data: {"))
        next(lines)
        process.terminate()
        return 1 + sum(1 for _ in lines)


@pytest.mark.parametrize(("source", "status", "said"), [(SERVES, 0, "stopped\n"), (CLEANS_UP, 143, "")])
def test_an_answer_under_way_is_given_to_its_end(upstream, source: str, status: int, said: str) -> None:
    server = upstream(lambda body: [chunk("4")] * 40, delay=0.02)
    with program(source, server.url, "30") as (process, url):
        assert events(url, process) == 40
        assert process.communicate(timeout=30) == (said, "")
        assert process.returncode == status


def test_what_takes_longer_than_the_drain_is_cut(upstream) -> None:
    server = upstream(lambda body: [chunk("4")] * 2000, delay=0.02)
    with program(SERVES, server.url, "1") as (process, url):
        with contextlib.suppress(httpx.HTTPError):
            assert events(url, process) < 2000
        assert process.communicate(timeout=30) == ("stopped\n", "")
