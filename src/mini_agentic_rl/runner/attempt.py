"""One attempt of one rollout, from its claim to its last status.

Order: on_rollout_start hooks; the trace with on_trace_start hooks, the agent, on_trace_end hooks, the reward and spans
that the agent returned, and the rewards that these hooks returned; on_rollout_end hooks with all spans of the attempt.

The first failure becomes the reason of the attempt, as an exception span and in `attempt.metadata["error"]`. The log
shows each cause as a warning once per run. An attempt that is stopped gives its rollout back to the queue.

The user's code is called with a time limit (`call_bounded`). Async code runs as a task, which is cancelled at a
time-out. Sync code runs in a daemon thread, which cannot be stopped: after the time-out it is abandoned, and spans that
it emits later are dropped.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from ..attribution import calls_of, unrecorded
from ..emitter import emit_exception, emit_reward
from ..litagent import RolloutOutcome, arguments_for, read_hook_result, read_result, rollout_call
from ..logging import CountedCauses
from ..processes import in_daemon_thread
from ..semconv import FAILURE_REASON
from ..store import LIVE_ATTEMPT_STATUSES, has_ended
from ..tracer import Trace, Tracer
from ..types import AttemptedRollout, AttemptStatus, Hook, NamedResources, Rollout, SpanCoreFields
from .workers import Worker, give_back

logger = logging.getLogger(__name__)

HookMethod = Literal["on_rollout_start", "on_trace_start", "on_trace_end", "on_rollout_end"]

_CANCEL_GRACE_SECONDS = 1.0


class OutOfTimeError(TimeoutError):
    """A call took longer than its limit."""


class StoppedError(Exception):
    """The run ended during the call."""


class ExitedError(Exception):
    """The called code tried to end the process, or cancelled its own task."""


@dataclass(frozen=True)
class AttemptFailure:
    """The reason why an attempt did not succeed."""

    status: AttemptStatus
    reason: str
    error: Exception


class AttemptRun:
    """The run of one attempt. `run` raises only if the store does, or if it is cancelled.

    The agent and the hooks share a copy of the rollout's metadata; their changes do not reach the store.

    Args:
        rollout: the rollout with its attempt.
        worker: runs the attempt.
        tracer: makes the spans.
        failures: causes that were logged as warnings in this run.
    """

    def __init__(self, rollout: AttemptedRollout, worker: Worker, tracer: Tracer, failures: CountedCauses) -> None:
        rollout = rollout.model_copy(update={"metadata": dict(rollout.metadata)})
        self.rollout = rollout
        self.failure: AttemptFailure | None = None
        """The first failure."""
        self._agent = worker.agent
        self._store = worker.store
        self._hooks = worker.hooks
        self._tracer = tracer
        self._failures = failures
        self._stop: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Done once the attempt has to stop; its result is the reason."""
        self._ending = False
        """True once the end is written to the store: the attempt can no longer be stopped."""
        self._failure_recorded = False
        self._hook_arguments = {
            "agent": worker.agent,
            "runner": worker.runner,
            "tracer": tracer,
            "rollout": rollout,
            "task": rollout.input,
        }

    def stop(self, reason: str) -> None:
        """Stop the attempt: its rollout goes back to the queue."""
        if not self._stop.done():
            self._stop.set_result(reason)

    def stop_if_over(self, stored: Rollout | None) -> None:
        """Stop the attempt if it no longer counts according to the rollout in the store."""
        latest = stored.attempt if isinstance(stored, AttemptedRollout) else None
        if stored is None or latest is None or latest.attempt_id != self.rollout.attempt.attempt_id:
            reason = "another attempt has taken its place"
        elif has_ended(stored):
            reason = f"its rollout has ended ({stored.status})"
        elif latest.status not in LIVE_ATTEMPT_STATUSES:
            reason = f"the store has given it up ({latest.status})"
        else:
            return
        if not self._stop.done() and not self._ending:
            number = self.rollout.attempt.sequence_id
            logger.warning("attempt %d of rollout %s is stopped: %s", number, self.rollout.rollout_id, reason)
            self.stop(reason)

    async def run(self) -> AttemptStatus | None:
        """Run the attempt; return its status, or None if it was stopped and given back."""
        rollout_id, attempt = self.rollout.rollout_id, self.rollout.attempt
        try:
            await self._store.update_attempt(
                rollout_id, attempt.attempt_id, status="running", last_heartbeat_time=time.time()
            )
            await self._start_hooks("on_rollout_start", self._deadline())
            await self._traced()
            await self._end_of_rollout()
        except StoppedError as error:
            await self._give_back(str(error))
            return None
        except BaseException as error:
            await self._give_back(f"the runner stopped: {type(error).__name__}: {error}")
            raise
        return await self._finish()

    async def _traced(self) -> None:
        rollout_id, attempt_id = self.rollout.rollout_id, self.rollout.attempt.attempt_id
        with self._failing("the trace"):
            async with self._tracer.trace_attempt(self._store, rollout_id, attempt_id) as trace:
                deadline = self._deadline()
                if self.failure is None:
                    await self._start_hooks("on_trace_start", deadline)
                outcome = None
                if self.failure is None:
                    outcome = await self._call_agent(deadline)
                self._emit_failure()
                rewards = await self._end_hooks("on_trace_end", {})
                self._record(outcome or RolloutOutcome(), trace)
                for reward in rewards:
                    self._add_span(reward)
                self._emit_failure()

    async def _end_of_rollout(self) -> None:
        rollout_id, attempt_id = self.rollout.rollout_id, self.rollout.attempt.attempt_id
        if not self._overridden("on_rollout_end"):
            return
        stored = await self._store.query_spans(rollout_id, attempt_id)
        known = {span.span_id for span in stored}
        spans = [*stored, *(span for span in self._tracer.get_last_trace() if span.span_id not in known)]
        with self._failing("the trace"):
            async with self._tracer.continue_trace() as trace:
                await self._end_hooks("on_rollout_end", {"spans": spans}, trace)
                self._emit_failure()

    async def _call_agent(self, deadline: float | None) -> RolloutOutcome | None:
        """Return the outcome of the agent; None if it failed."""
        outcome = None
        with self._failing("the agent"):
            resources = await self._resources()
            method, args, kwargs = rollout_call(self._agent, self.rollout, resources)
            before = dict(self.rollout.metadata)
            with calls_of(self.rollout.rollout_id, self.rollout.attempt.attempt_id, resources):
                result = await call_bounded(method, args, kwargs, deadline=deadline, stop=self._stop)
            outcome = read_result(result, self.rollout, before)
        return outcome

    def _record(self, outcome: RolloutOutcome, trace: Trace) -> None:
        """Record the spans and the reward that the agent returned, after those that `on_trace_end` hooks emit."""
        with self._failing("the agent"):
            known = {span.span_id for span in trace.recorded}
            for span in outcome.spans:
                if span.span_id not in known:
                    trace.record(span)
            if outcome.reward is not None:
                self._add_span(emit_reward(outcome.reward, final=True, propagate=False))

    async def _resources(self) -> NamedResources:
        """Return the resources of the rollout.

        Raises:
            LookupError: they are not in the store, or the store has none and the agent needs some.
        """
        wanted = self.rollout.resources_id
        if wanted is None:
            update = await self._store.get_latest_resources()
            if update is None and self._agent.needs_resources(self.rollout.mode):
                raise LookupError(
                    "the agent asks for resources, but the store has none: an algorithm of your own adds them by "
                    "store.add_resources({…}) before it enqueues a rollout; without one, give Trainer("
                    "initial_resources={…})"
                )
        else:
            update = await self._store.get_resources_by_id(wanted)
            if update is None:
                raise LookupError(f"resources_id {wanted!r} of the rollout is not in the store")
        return {} if update is None else update.resources

    async def _start_hooks(self, method: HookMethod, deadline: float | None) -> None:
        for hook in self._overridden(method):
            if self.failure is None:
                await self._call_hook(hook, method, {}, deadline)

    async def _end_hooks(
        self, method: HookMethod, more: dict[str, Any], trace: Trace | None = None
    ) -> list[SpanCoreFields]:
        """Run every hook, even after a failure; return the rewards that they returned, not recorded yet.

        With a trace they are recorded at once: each hook sees the spans and rewards of the hooks before it.
        """
        rewards: list[SpanCoreFields] = []
        for hook in self._overridden(method):
            seen = len(trace.recorded) if trace is not None else 0
            before = dict(self.rollout.metadata)
            result = await self._call_hook(hook, method, more, self._deadline())
            try:
                reward = read_hook_result(result, self.rollout, before)
                if reward is not None:
                    rewards.append(emit_reward(reward, final=True, propagate=False))
            except (TypeError, ValueError) as error:
                self._fail("failed", f"hook {type(hook).__name__}.{method}", error)
            if trace is not None:
                for reward_span in rewards:
                    self._add_span(reward_span)
                rewards.clear()
                more = {**more, "spans": [*more["spans"], *trace.recorded[seen:]]}
        return rewards

    async def _call_hook(self, hook: Hook, method: HookMethod, more: dict[str, Any], deadline: float | None) -> Any:
        result = None
        with self._failing(f"hook {type(hook).__name__}.{method}"):
            func = getattr(hook, method)
            args, kwargs = arguments_for(func, {**self._hook_arguments, **more}, by_position=False)
            with unrecorded():  # LLM calls of a hook, such as a judge, are no calls of the agent
                result = await call_bounded(func, args, kwargs, deadline=deadline, stop=self._stop)
        return result

    def _overridden(self, method: HookMethod) -> list[Hook]:
        no_op = getattr(Hook, method)
        return [hook for hook in self._hooks if getattr(getattr(hook, method), "__func__", None) is not no_op]

    def _deadline(self) -> float | None:
        """`timeout_seconds` from now, as time of the event loop."""
        limit = self.rollout.config.timeout_seconds
        return None if limit is None else asyncio.get_running_loop().time() + limit

    @contextmanager
    def _failing(self, where: str) -> Iterator[None]:
        """Turn every exception inside into a failure of the attempt, except `StoppedError`."""
        try:
            yield
        except StoppedError:
            raise
        except OutOfTimeError as error:
            limit = self.rollout.config.timeout_seconds
            self._fail(
                "timeout", f"{where} took longer than timeout_seconds={limit:g}, which `rollout_timeout` sets", error
            )
        except Exception as error:
            self._fail("failed", where, error)

    def _fail(self, status: AttemptStatus, where: str, error: Exception) -> None:
        """Keep the first failure; log all, as a warning if the cause is new in this run."""
        reason = where if isinstance(error, OutOfTimeError) else f"{where}: {type(error).__name__}: {error}"
        number = self.rollout.attempt.sequence_id
        level = logging.WARNING if self._failures.add(reason) else logging.DEBUG
        logger.log(level, "attempt %d of rollout %s: %s", number, self.rollout.rollout_id, reason)
        if self.failure is None:
            self.failure = AttemptFailure(status, reason, error)

    def _emit_failure(self) -> None:
        """Record the failure in the open trace, once."""
        if self.failure is not None and not self._failure_recorded:
            self._failure_recorded = True
            self._add_span(emit_exception(self.failure.error, {FAILURE_REASON: self.failure.reason}, propagate=False))

    def _add_span(self, span: SpanCoreFields) -> None:
        """Record a span in the open trace of the runner; a tracer of the user may send its spans elsewhere."""
        Tracer.create_span(self._tracer, span.name, span.attributes, status=span.status)

    async def _finish(self) -> AttemptStatus:
        self._ending = True
        rollout_id, attempt = self.rollout.rollout_id, self.rollout.attempt
        if self.failure is None:
            await self._store.update_attempt(rollout_id, attempt.attempt_id, status="succeeded")
            return "succeeded"
        metadata = {**attempt.metadata, "error": self.failure.reason}
        await self._store.update_attempt(rollout_id, attempt.attempt_id, status=self.failure.status, metadata=metadata)
        return self.failure.status

    async def _give_back(self, reason: str) -> None:
        """Queue the rollout again; this does not count as a failure of the agent."""
        rollout_id = self.rollout.rollout_id
        try:
            await give_back(self._store, rollout_id, self.rollout.attempt.attempt_id, reason)
        except Exception as error:  # the store is out of reach: its health check will find the attempt
            logger.warning("rollout %s could not be given back: %s", rollout_id, error)


async def call_bounded(
    func: Callable[..., Any],
    args: list[Any],
    kwargs: dict[str, Any],
    *,
    deadline: float | None,
    stop: asyncio.Future[Any] | None,
) -> Any:
    """Call `func`, sync or async, and return its result.

    Args:
        func: the function.
        args: its positional arguments.
        kwargs: its keyword arguments.
        deadline: time of the event loop by which it must have returned; None is no limit.
        stop: the call is abandoned once this future is done; its result, if it is a string, is the reason.

    Raises:
        OutOfTimeError: the deadline passed. The call was cancelled, or its thread abandoned.
        StoppedError: `stop` was done first.
        ExitedError: the code called `sys.exit`, or cancelled the task that it runs in.
        Exception: whatever the code raised.
    """
    name = str(getattr(func, "__qualname__", type(func).__name__))

    async def invoke() -> Any:
        try:
            if inspect.iscoroutinefunction(func):
                return await func(*args, **kwargs)
            result = await in_daemon_thread(partial(func, *args, **kwargs), f"call-{name}")
            return await result if inspect.isawaitable(result) else result
        except (SystemExit, KeyboardInterrupt) as error:
            raise ExitedError(f"{name} raised {type(error).__name__}: {error}") from error

    work = asyncio.ensure_future(invoke())
    # Retrieve the exception of a call that is abandoned, or asyncio would log it.
    work.add_done_callback(lambda task: None if task.cancelled() else task.exception())
    try:
        await wait_until_done(work, stop, deadline)
    except asyncio.CancelledError:
        work.cancel()
        raise
    if work.cancelled():
        raise ExitedError(f"{name} cancelled itself")
    if work.done():
        return work.result()
    work.cancel()
    await asyncio.wait({work}, timeout=_CANCEL_GRACE_SECONDS)
    if not work.done():
        logger.warning("%s ignores its cancellation and goes on in the background", name)
    if stop is not None and stop.done():
        raise StoppedError(str(stop.result() or "the run was stopped"))
    raise OutOfTimeError(f"{name} did not return in time")


async def wait_until_done(
    work: asyncio.Future[Any], stop: asyncio.Future[Any] | None, deadline: float | None = None
) -> None:
    """Wait until `work` or `stop` is done, or the deadline (time of the event loop) has passed."""
    timeout = None if deadline is None else max(0.0, deadline - asyncio.get_running_loop().time())
    futures = {work} if stop is None else {work, stop}
    await asyncio.wait(futures, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
