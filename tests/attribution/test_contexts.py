"""Where a call is made from: threads, pools, processes, hooks; and what becomes of one that nobody can name."""

from __future__ import annotations

import asyncio
import queue
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from mini_agentic_rl import Hook, LitAgent, LLMProxy, agent, rollout_environment, unrecorded
from mini_agentic_rl.adapter import TrainedCalls
from mini_agentic_rl.gateway.settings import GatewayLimits


@pytest.fixture
def ask(rollouts):
    client = openai.OpenAI(base_url=rollouts.server.endpoint, api_key="none")

    def call(text: str) -> Any:
        return client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": text}], max_tokens=4)

    yield call
    client.close()


class Runs(LitAgent):
    """An agent that is a function of its task."""

    def __init__(self, act) -> None:
        super().__init__()
        self.act = act

    def rollout(self, task):
        self.act(task)


async def test_threads_that_an_agent_starts_belong_to_its_attempt(rollouts, questions, ask) -> None:
    shared = ThreadPoolExecutor(2)
    shared.submit(int).result()  # it has a thread that knows of no attempt
    meet = threading.Barrier(2)

    def act(task: str) -> None:
        thread = threading.Thread(target=ask, args=(f"{task} thread",))
        thread.start()
        thread.join()
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(ask, [f"{task} pool", f"{task} pool"]))
        meet.wait(30)
        shared.submit(ask, f"{task} shared").result()
        asyncio.run(_in_a_loop(task))

    async def _in_a_loop(task: str) -> None:
        await asyncio.to_thread(ask, f"{task} to_thread")
        await asyncio.get_running_loop().run_in_executor(None, ask, f"{task} executor")

    found = await rollouts.run(Runs(act), ["a", "b"])
    kinds = ("executor", "pool", "pool", "shared", "thread", "to_thread")
    for task, spans in found.items():
        assert sorted(questions(spans)) == [f"{task} {kind}" for kind in kinds]
    before = await rollouts.store.query_rollouts()
    assert shared.submit(ask, "afterwards").result().choices  # its threads remember no attempt
    assert len(await rollouts.store.query_rollouts()) == len(before)


async def test_a_call_that_might_be_of_any_rollout_is_refused_and_told_how_to_name_itself(
    rollouts, questions, ask
) -> None:
    jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
    refused: list[openai.APIStatusError] = []

    def work() -> None:
        while (job := jobs.get()) is not None:
            try:
                ask("whose?")
            except openai.BadRequestError as error:
                refused.append(error)
            with unrecorded():
                ask("nobody's")
            job()

    thread = threading.Thread(target=work)
    thread.start()

    class AtUrl(LitAgent):
        def rollout(self, task, resources, rollout):
            done = threading.Event()
            url = resources["llm"].get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
            body = {"model": "tiny", "messages": [{"role": "user", "content": f"{task}'s"}], "max_tokens": 2}

            def job() -> None:
                httpx.post(f"{url}/chat/completions", json=body).raise_for_status()
                done.set()

            jobs.put(job)
            assert done.wait(30)

    found = await rollouts.run(AtUrl(), ["a", "b"])
    jobs.put(None)
    thread.join()
    assert {task: questions(spans) for task, spans in found.items()} == {"a": ["a's"], "b": ["b's"]}
    assert [(error.status_code, error.code) for error in refused] == [(400, "rollout_unnamed")] * 2
    for way in ("rollout's own URL", "rollout_environment()", "unrecorded()"):
        assert way in refused[0].message


async def test_a_thread_that_outlives_its_attempt_is_refused(rollouts, ask) -> None:
    ended, answered = threading.Event(), []

    def late() -> None:
        ended.wait(30)
        try:
            answered.append(ask("late"))
        except openai.BadRequestError as error:
            answered.append(error)

    threads = [threading.Thread(target=late)]
    found = await rollouts.run(Runs(lambda task: threads[0].start()), ["a"])
    ended.set()
    await asyncio.to_thread(threads[0].join)
    assert found == {"a": []}
    assert "has ended" in str(answered[0])


async def test_what_hooks_ask_the_model_is_no_call_of_the_agent(rollouts, questions, ask) -> None:
    class Judge(Hook):
        def on_rollout_start(self) -> None:
            ask("start")

        def on_rollout_end(self) -> float:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(ask, "is it good?").result()
            return 1.0

    def act(task: str) -> None:
        ask(task)
        with unrecorded():
            ask("by the way")

    found = await rollouts.run(Runs(act), ["a"], [Judge()])
    assert questions(found["a"]) == ["a"]


CHILD = """
import json, os, sys, urllib.request
url = sys.argv[1] if len(sys.argv) > 1 else os.environ["OPENAI_BASE_URL"]
if len(sys.argv) > 1:
    import mini_agentic_rl
body = {"model": "tiny", "messages": [{"role": "user", "content": "child"}], "max_tokens": 4}
request = urllib.request.Request(url + "/chat/completions", json.dumps(body).encode())
request.add_header("content-type", "application/json")
urllib.request.urlopen(request).read()
"""


async def test_a_child_process_asks_the_rollouts_url_or_is_named_by_its_environment(rollouts, questions) -> None:
    fixed = rollouts.server.endpoint

    def act(task: str) -> None:
        more = [] if task == "url" else [fixed]
        subprocess.run([sys.executable, "-c", CHILD, *more], env=rollout_environment(), check=True)

    found = await rollouts.run(Runs(act), ["url", "fixed"])
    assert {task: questions(spans) for task, spans in found.items()} == {"url": ["child"], "fixed": ["child"]}


def test_outside_of_a_rollout_there_is_no_environment_of_one() -> None:
    with pytest.raises(RuntimeError, match="no rollout runs here"):
        rollout_environment()


async def test_plain_calls_name_their_agent(rollouts, questions, ask) -> None:
    def act(task: str) -> None:
        ask("nobody")
        with agent("planner"):
            ask("plan")
            with ThreadPoolExecutor(2) as pool:
                jobs = [pool.submit(_as, name) for name in ("solver", "checker")]
            [job.result() for job in jobs]
            ask("again")

    def _as(name: str) -> None:
        with agent(name):
            ask(name)

    spans = (await rollouts.run(Runs(act), ["a"]))["a"]
    named = dict(zip(questions(spans), [span.attributes.get("gen_ai.agent.name") for span in spans], strict=True))
    assert named == {"nobody": None, "plan": "planner", "again": "planner", "solver": "solver", "checker": "checker"}
    chosen = TrainedCalls({"trained_agents": "^planner$"}).select(spans)
    assert (len(chosen.records), sum(chosen.left_out.values())) == (2, 3)
    with pytest.raises(ValueError, match="name of an agent"):
        agent("")


async def test_an_agent_may_be_named_in_a_header_and_at_the_rollouts_url(rollouts) -> None:
    class AtUrl(LitAgent):
        def rollout(self, task, resources, rollout):
            url = resources["llm"].get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
            client = openai.OpenAI(base_url=url, api_key="none")
            messages = [{"role": "user", "content": "x"}]
            with agent("Planer für alles"):
                client.chat.completions.create(model="tiny", messages=messages, max_tokens=2)
            headers = {"baggage": "gen_ai.agent.name=by-hand"}
            client.chat.completions.create(model="tiny", messages=messages, max_tokens=2, extra_headers=headers)

    spans = (await rollouts.run(AtUrl(), ["a"]))["a"]
    assert [span.attributes["gen_ai.agent.name"] for span in spans] == ["Planer für alles", "by-hand"]


async def test_plain_calls_are_held_to_the_limits_and_go_through_a_proxy(rollouts, questions) -> None:
    upstream = {"model_name": "tiny", "base_url": rollouts.server.endpoint, "model": "tiny", "token_ids": "vllm"}
    proxy = LLMProxy(model_list=[upstream], store=rollouts.store, limits=GatewayLimits(max_rollout_calls=2))
    await proxy.start()
    client = openai.OpenAI(base_url=proxy.endpoint, api_key="none")

    def ask(text: str) -> None:
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": text}], max_tokens=4)

    def act(task: str) -> None:
        with agent("planner"):
            ask(f"{task} 1")
        ask(f"{task} 2")
        with pytest.raises(openai.PermissionDeniedError, match="max_rollout_calls"):
            ask(f"{task} 3")

    try:
        found = await rollouts.run(Runs(act), ["a", "b"])
    finally:
        await proxy.stop()
    for task, spans in found.items():
        assert questions(spans) == [f"{task} 1", f"{task} 2"]
        assert [span.attributes.get("gen_ai.agent.name") for span in spans] == ["planner", None]
        assert all("prompt_token_ids" in span.attributes for span in spans)


async def test_half_an_attempt_in_the_header_is_refused(rollouts) -> None:
    async with httpx.AsyncClient(base_url=rollouts.server.endpoint) as client:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}]}
        headers = {"baggage": "agentlightning.rollout_id=ro-1"}
        answer = await client.post("/chat/completions", json=body, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "rollout_unnamed")
