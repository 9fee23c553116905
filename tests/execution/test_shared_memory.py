"""The in-process strategy: both sides run, end together, and nothing that goes wrong is lost."""

import asyncio
import errno
import logging
import signal
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

from mini_agentic_rl.emitter import emit_message, find_final_reward, get_message_value
from mini_agentic_rl.execution import ExecutionEvent, SharedMemoryExecutionStrategy, ThreadingEvent
from mini_agentic_rl.execution.roles import Backoff, RoleThread
from mini_agentic_rl.litagent import rollout
from mini_agentic_rl.runner import LitAgentRunner
from mini_agentic_rl.store.base import LightningStore, LightningStoreCapabilities
from mini_agentic_rl.store.memory import InMemoryLightningStore
from mini_agentic_rl.tracer import DummyTracer
from processes import PythonProcess

SIDES = pytest.mark.parametrize("side", ["algorithm", "runner"])


async def _idle(store: LightningStore, index: int, event: ExecutionEvent) -> None:
    await event.wait_async()


def _real_runner(agent: Any) -> Any:
    shared = LitAgentRunner(DummyTracer())

    async def run(store: LightningStore, index: int, event: ExecutionEvent) -> None:
        with shared.run_context(agent=agent, store=store, worker_id=index):
            await shared.iter(event=event)

    return run


@SIDES
def test_an_algorithm_gets_its_rollouts_from_the_runners(side: Any) -> None:
    loops = set()

    @rollout
    async def agent(task: int) -> float:
        loops.add(threading.current_thread().name)
        await asyncio.sleep(0.001)
        emit_message(f"task {task}")
        return float(task)

    async def algorithm(store: LightningStore, event: ExecutionEvent) -> None:
        queued = [await store.enqueue_rollout(number) for number in range(50)]
        ended = await store.wait_for_rollouts(rollout_ids=[one.rollout_id for one in queued], timeout=20)
        assert [one.status for one in ended] == ["succeeded"] * 50
        for number, one in enumerate(ended):
            spans = list(await store.query_spans(one.rollout_id))
            assert [get_message_value(span) for span in spans] == [f"task {number}", None]
            assert find_final_reward(spans) == number
        loops.add("the algorithm's " + threading.current_thread().name)

    strategy = SharedMemoryExecutionStrategy(n_runners=128, main_thread=side)
    strategy.execute(algorithm, _real_runner(agent), InMemoryLightningStore())
    main = threading.current_thread().name
    expected = {f"the algorithm's {main}", "runners"} if side == "algorithm" else {"the algorithm's algorithm", main}
    assert loops == expected


@SIDES
def test_the_algorithms_exception_stops_the_runners_and_is_raised(side: Any) -> None:
    stopped: list[int] = []

    async def algorithm(store: LightningStore, event: ExecutionEvent) -> None:
        await asyncio.sleep(0.05)
        raise ZeroDivisionError("in the algorithm")

    async def runner(store: LightningStore, index: int, event: ExecutionEvent) -> None:
        await event.wait_async()
        stopped.append(index)

    strategy = SharedMemoryExecutionStrategy(n_runners=3, main_thread=side)
    with pytest.raises(ZeroDivisionError, match="in the algorithm"):
        strategy.execute(algorithm, runner, InMemoryLightningStore())
    assert sorted(stopped) == [0, 1, 2]


@SIDES
def test_a_runner_that_crashes_is_logged_and_started_again(side: Any, caplog: pytest.LogCaptureFixture) -> None:
    starts: list[int] = []
    again = threading.Event()

    async def algorithm(store: LightningStore, event: ExecutionEvent) -> None:
        assert await asyncio.to_thread(again.wait, 10)

    async def runner(store: LightningStore, index: int, event: ExecutionEvent) -> None:
        starts.append(index)
        if len(starts) == 1:
            raise OSError("lost the store")
        again.set()
        await event.wait_async()

    SharedMemoryExecutionStrategy(main_thread=side).execute(algorithm, runner, InMemoryLightningStore())
    assert starts == [0, 0]
    assert "lost the store" in caplog.text


@SIDES
def test_a_runner_that_crashes_again_and_again_ends_the_run(side: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mini_agentic_rl.execution.roles.Backoff.__init__.__defaults__", (0.0, 0.0, 60.0))
    ended = []

    async def algorithm(store: LightningStore, event: ExecutionEvent) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("cancelled")

    async def runner(store: LightningStore, index: int, event: ExecutionEvent) -> None:
        raise ZeroDivisionError("a fault of the runner's own")

    with pytest.raises(ZeroDivisionError, match="of the runner's own"):
        SharedMemoryExecutionStrategy(main_thread=side).execute(algorithm, runner, InMemoryLightningStore())
    assert ended == ["cancelled"]


@SIDES
@pytest.mark.parametrize(("delay", "ends"), [(10.0, ["by itself"]), (0.05, ["cancelled"])])
def test_an_algorithm_that_sets_the_event_has_graceful_delay_to_end(side: Any, delay: float, ends: list[str]) -> None:
    ended = []

    async def algorithm(store: LightningStore, event: ExecutionEvent) -> None:
        event.set()
        try:
            await asyncio.sleep(0.2 if delay > 1 else 60)
            ended.append("by itself")
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    strategy = SharedMemoryExecutionStrategy(main_thread=side, graceful_delay=delay, poll_interval=0.01)
    strategy.execute(algorithm, _idle, InMemoryLightningStore())
    assert ended == ends


def test_a_store_for_one_thread_is_called_from_one_unless_told_otherwise() -> None:
    class Single(InMemoryLightningStore):
        @property
        def capabilities(self) -> LightningStoreCapabilities:
            return {**super().capabilities, "thread_safe": False}

        async def enqueue_many_rollouts(self, rollouts: Any) -> Any:
            callers.add(threading.current_thread().name)
            return await super().enqueue_many_rollouts(rollouts)

    async def both(store: LightningStore, *rest: Any) -> None:
        await store.enqueue_rollout("task")
        while (await store.statistics())["total_rollouts"] < 2:
            await asyncio.sleep(0.01)

    for managed, count in ((None, 1), (False, 2)):
        callers: set[str] = set()
        single = Single()
        SharedMemoryExecutionStrategy(managed_store=managed).execute(both, both, single)
        assert len(callers) == count
        assert asyncio.run(single.statistics())["total_rollouts"] == 2


def test_a_runner_that_does_not_stop_is_given_up_after_join_timeout(caplog: pytest.LogCaptureFixture) -> None:
    release, released = threading.Event(), threading.Event()

    async def algorithm(store: LightningStore, event: ExecutionEvent) -> None:
        await asyncio.sleep(0.05)

    async def runner(store: LightningStore, index: int, event: ExecutionEvent) -> None:
        release.wait(60)
        released.set()

    with caplog.at_level(logging.WARNING):
        SharedMemoryExecutionStrategy(join_timeout=0.1).execute(algorithm, runner, InMemoryLightningStore())
    assert not released.is_set()
    release.set()
    assert "join_timeout" in caplog.text


@SIDES
def test_ctrl_c_cancels_the_algorithm_cleanly_and_stops_the_runners(side: str, tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    program = textwrap.dedent(
        f"""
        import asyncio
        from mini_agentic_rl.execution import SharedMemoryExecutionStrategy
        from mini_agentic_rl.store.memory import InMemoryLightningStore

        running = []

        async def algorithm(store, event):
            try:
                while len(running) < 2:
                    await asyncio.sleep(0.01)
                print("ready", flush=True)
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                print("algorithm saved its checkpoint", flush=True)
                raise

        async def runner(store, index, event):
            running.append(index)
            try:
                await event.wait_async()
            finally:
                print("runner stopped", flush=True)

        try:
            SharedMemoryExecutionStrategy(n_runners=2, main_thread={side!r}).execute(
                algorithm, runner, InMemoryLightningStore()
            )
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        """
    )
    script.write_text(program)
    with PythonProcess(script) as process:
        assert process.wait_for_line() == "ready"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0, process.stderr
        lines = process.stdout.splitlines()[1:]
    assert sorted(lines) == ["algorithm saved its checkpoint", "interrupted", "runner stopped", "runner stopped"]
    assert lines[-1] == "interrupted"


def test_settings_that_cannot_work_are_named() -> None:
    for name, value in (("n_runners", 0), ("main_thread", "both"), ("join_timeout", -1)):
        with pytest.raises(ValueError, match=name):
            SharedMemoryExecutionStrategy(**{name: value})


async def test_an_event_set_in_another_thread_wakes_every_waiting_coroutine() -> None:
    event = ThreadingEvent()
    waiting = [asyncio.create_task(event.wait_async()) for _ in range(10)]
    await asyncio.sleep(0.01)
    assert not any(task.done() for task in waiting)
    threading.Timer(0.02, event.set).start()
    await asyncio.wait_for(asyncio.gather(*waiting), 2)
    assert event.is_set()
    assert event.wait(0)
    await asyncio.wait_for(event.wait_async(), 0.1)
    event.clear()
    assert not event.is_set()


def test_delays_double_and_begin_anew_after_a_long_run() -> None:
    backoff = Backoff()
    assert [backoff.after_run(1.0) for _ in range(8)] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert backoff.after_run(61.0) == 0.5
    assert backoff.crashes == 1


def test_a_thread_that_gets_no_event_loop_says_so_and_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> asyncio.AbstractEventLoop:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(asyncio.events, "new_event_loop", refuse)
    refused: list[bool] = []

    def start() -> None:
        with pytest.raises(OSError, match="Too many open files"):
            RoleThread("runners", lambda: asyncio.sleep(0)).start()
        refused.append(True)

    starting = threading.Thread(target=start, daemon=True)
    starting.start()
    starting.join(10)
    assert refused
