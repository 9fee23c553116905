"""A machine of hypothesis that calls a store and a plain model of the contract side by side.

The clock stands still but for the steps that move it, so times are compared exactly and attempts go past their limits
at known calls. After each step everything that the store holds is compared with the model.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from mini_agentic_rl.store import LightningStore
from mini_agentic_rl.types import AttemptedRollout, EnqueueRolloutRequest, PromptTemplate, Rollout, RolloutConfig, Span

from .conftest import KINDS, opened_store
from .model import ENDED_ROLLOUT, WAITING, ModelAttempt, ModelRollout, ModelStore, page_of

T = TypeVar("T")

TICK = 0.25
FEW = 6
"""Not many more rollouts than this, so that each goes through a lot."""

index = st.integers(0, 1000)
workers = st.sampled_from([None, "w1", "w2", "w3"])
seconds = st.sampled_from([None, 0.5, 1.0, 4.0])
attempt_statuses = st.sampled_from(["preparing", "running", "failed", "succeeded", "unresponsive", "timeout"])
rollout_statuses = st.sampled_from(["queuing", "preparing", "running", "failed", "succeeded", "cancelled", "requeuing"])
configs = st.builds(
    RolloutConfig,
    timeout_seconds=seconds,
    unresponsive_seconds=seconds,
    max_attempts=st.integers(1, 3),
    retry_condition=st.lists(st.sampled_from(["failed", "timeout", "unresponsive"]), unique=True),
)
notes = st.dictionaries(st.sampled_from(["k", "n"]), st.integers(0, 9), max_size=2)
requests = st.builds(
    EnqueueRolloutRequest,
    input=st.one_of(st.integers(0, 9), st.just({"question": "1 + 1", "hints": [None, 0.5]})),
    mode=st.sampled_from([None, "train", "val", "test"]),
    resources_id=st.sampled_from([None, "rs-own"]),
    config=st.one_of(st.none(), configs),
    metadata=st.one_of(st.none(), notes),
)


class Clock:
    """Stands in for `time.time`, and for the clock that nobody sets."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


EXAMPLES = {"memory": 30, "sqlite": 8}
FEW_EXAMPLES = 3

pages = st.fixed_dictionaries(
    {
        "sort_order": st.sampled_from(["asc", "desc"]),
        "limit": st.integers(-1, 4),
        "offset": st.integers(0, 3),
    }
)


class StoreMachine(RuleBasedStateMachine):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.clock = Clock()
        self.folder = tempfile.TemporaryDirectory()
        self.loop = asyncio.new_event_loop()
        self.opened = AsyncExitStack()
        with ExitStack() as patch:  # a store that cannot be opened leaves other tests their time
            for name in ("time.time", "mini_agentic_rl.store.lifecycle.steady"):
                patch.enter_context(mock.patch(name, self.clock))
            entered = self.opened.enter_async_context(opened_store(kind, Path(self.folder.name)))
            self.store: LightningStore = self.run(entered)
            self.patch = patch.pop_all()
        self.model = ModelStore()
        self.ended: dict[str, str] = {}
        self.span_ids = itertools.count(1)

    def teardown(self) -> None:
        self.patch.close()
        self.run(self.opened.aclose())
        self.loop.close()
        self.folder.cleanup()

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(call)

    def call(self, call: Coroutine[Any, Any, T]) -> T:
        """Call the store a tick later; the model is told the time."""
        self.clock.now += TICK
        self.model.at(self.clock.now)
        return self.run(call)

    def any_rollout(self, pick: int) -> ModelRollout:
        rollouts = list(self.model.rollouts.values())
        return rollouts[pick % len(rollouts)]

    def any_attempt(self, pick: int) -> ModelAttempt:
        attempts = self.model.attempts()
        return attempts[pick % len(attempts)]

    @initialize(many=st.lists(requests, min_size=2, max_size=4))
    def begin(self, many: list[EnqueueRolloutRequest]) -> None:
        self.enqueue(many)
        self.dequeue(2, "w1")
        self.start_attempt(1, "w2")

    @rule(step=st.sampled_from([0.5, 1.0, 5.0]))
    def time_passes(self, step: float) -> None:
        self.clock.now += step

    @precondition(lambda self: len(self.model.rollouts) < FEW)
    @rule(many=st.lists(requests, max_size=3))
    def enqueue(self, many: list[EnqueueRolloutRequest]) -> None:
        queued = self.call(self.store.enqueue_many_rollouts(many))
        assert len(queued) == len(many)
        for rollout, request in zip(queued, many, strict=True):
            assert rollout.rollout_id not in self.model.rollouts
            self.agrees(rollout, self.model.create(rollout.rollout_id, request))

    @rule(limit=st.integers(0, 3), worker_id=workers)
    def dequeue(self, limit: int, worker_id: str | None) -> None:
        claimed = self.call(self.store.dequeue_many_rollouts(limit=limit, worker_id=worker_id))
        waiting = self.model.queue_places()
        assert [self.model.rollouts[rollout.rollout_id].status in WAITING for rollout in claimed] == [True] * len(
            claimed
        )
        assert len({rollout.rollout_id for rollout in claimed}) == len(claimed) == min(limit, len(waiting))
        positions = [self.model.rollouts[rollout.rollout_id].queue_position for rollout in claimed]
        assert positions == waiting[: len(claimed)]
        for rollout in claimed:
            self.model.start_attempt(rollout.rollout_id, rollout.attempt.attempt_id, worker_id)
            self.agrees(rollout, self.model.rollouts[rollout.rollout_id])

    @precondition(lambda self: len(self.model.rollouts) < FEW)
    @rule(request=requests, worker_id=workers)
    def start_rollout(self, request: EnqueueRolloutRequest, worker_id: str | None) -> None:
        fields = dict(request)
        started = self.call(self.store.start_rollout(**fields, worker_id=worker_id))
        self.model.create(started.rollout_id, request)
        self.model.start_attempt(started.rollout_id, started.attempt.attempt_id, worker_id)
        self.agrees(started, self.model.rollouts[started.rollout_id])

    @precondition(lambda self: self.model.rollouts)
    @rule(pick=index, worker_id=workers)
    def start_attempt(self, pick: int, worker_id: str | None) -> None:
        unended = [rollout for rollout in self.model.rollouts.values() if rollout.status not in ENDED_ROLLOUT]
        rollout = unended[pick % len(unended)] if unended and pick % 5 else self.any_rollout(pick)
        call = self.store.start_attempt(rollout.rollout_id, worker_id)
        self.clock.now += TICK
        self.model.at(self.clock.now)
        if rollout.status in ENDED_ROLLOUT:
            with pytest.raises(ValueError, match=rollout.rollout_id):
                self.run(call)
            return
        started = self.run(call)
        self.model.start_attempt(rollout.rollout_id, started.attempt.attempt_id, worker_id)
        self.agrees(started, rollout)

    @precondition(lambda self: self.model.attempts())
    @rule(data=st.data(), count=st.integers(1, 3))
    def add_spans(self, data: st.DataObject, count: int) -> None:
        """Spans of any attempts, some of them for the second time, some after the end."""
        spans = []
        for _ in range(count):
            if self.model.spans and data.draw(st.integers(0, 3)) == 0:
                spans.append(self.model.spans[data.draw(index) % len(self.model.spans)])
                continue
            attempt = self.any_attempt(data.draw(index))
            number = next(self.span_ids)
            spans.append(
                Span(
                    rollout_id=attempt.rollout_id,
                    attempt_id=attempt.attempt_id,
                    sequence_id=data.draw(st.integers(1, 6)),
                    trace_id=data.draw(st.sampled_from(["aa" * 16, "ab" * 16])),
                    span_id=f"{number:016x}",
                    parent_id=data.draw(st.sampled_from([None, f"{max(1, number - 1):016x}"])),
                    name=data.draw(st.sampled_from(["call", "call_tool", "reward", "100%_r"])),
                    attributes={"ids": [1, 2], "value": 0.5},
                    start_time=data.draw(st.sampled_from([None, 1.5, 2.5])),
                )
            )
        stored = self.call(self.store.add_many_spans(spans))
        assert list(stored) == self.model.add_spans(spans)
        assert self.run(self.store.add_span(spans[0])) is None
        for rollout_id in {span.rollout_id for span in spans}:
            kept = self.run(self.store.query_spans(rollout_id, sort_by=None))
            assert list(kept) == [span for span in self.model.spans if span.rollout_id == rollout_id]

    @precondition(lambda self: self.model.attempts())
    @rule(picks=st.lists(index, min_size=1, max_size=3))
    def take_sequence_ids(self, picks: list[int]) -> None:
        attempts = [self.any_attempt(pick) for pick in picks]
        pairs = [(attempt.rollout_id, attempt.attempt_id) for attempt in attempts]
        numbers = self.call(self.store.get_many_span_sequence_ids(pairs))
        assert list(numbers) == [self.model.next_number(*pair) for pair in pairs]

    @precondition(lambda self: self.model.attempts())
    @rule(
        pick=index,
        status=st.one_of(st.sampled_from([None, "running"]), attempt_statuses),
        worker_id=workers,
        skew=st.sampled_from([None, 0.0, 1e9, -1e9]),
        metadata=st.one_of(st.none(), notes),
        latest=st.booleans(),
    )
    def update_attempt(
        self,
        pick: int,
        status: str | None,
        worker_id: str | None,
        skew: float | None,
        metadata: dict[str, int] | None,
        latest: bool,
    ) -> None:
        attempt = self.any_attempt(pick)
        if latest:
            attempt = self.model.rollouts[attempt.rollout_id].attempts[-1]
        fields: dict[str, Any] = {} if metadata is None else {"metadata": metadata}
        if worker_id is not None and attempt.worker_id is None:
            fields["worker_id"] = worker_id
        if skew is not None:
            fields["last_heartbeat_time"] = self.clock.now + skew
        attempt_id = "latest" if latest else attempt.attempt_id
        given = fields if status is None else {"status": status, **fields}
        updated = self.call(self.store.update_attempt(attempt.rollout_id, attempt_id, **given))
        self.agrees(updated, self.model.update_attempt(attempt.rollout_id, attempt.attempt_id, status, **fields))

    @precondition(lambda self: self.model.rollouts)
    @rule(
        pick=index,
        status=st.one_of(st.sampled_from([None, "requeuing"]), rollout_statuses),
        fields=st.fixed_dictionaries(
            {},
            optional={
                "input": st.integers(0, 9),
                "mode": st.sampled_from([None, "test"]),
                "resources_id": st.sampled_from([None, "rs-own"]),
                "config": configs,
                "metadata": st.one_of(st.none(), notes),
            },
        ),
    )
    def update_rollout(self, pick: int, status: str | None, fields: dict[str, Any]) -> None:
        rollout = self.any_rollout(pick)
        given = fields if status is None else {"status": status, **fields}
        updated = self.call(self.store.update_rollout(rollout.rollout_id, **given))
        self.model.update_rollout(rollout.rollout_id, status, **fields)
        self.agrees(updated, rollout)

    @rule(known=st.booleans(), pick=index, text=st.sampled_from(["one", "two"]))
    def write_resources(self, known: bool, pick: int, text: str) -> None:
        resources = {"prompt": PromptTemplate(template=text)}
        if known:
            ids = [*self.model.resources, "rs-own"]
            written = self.call(self.store.update_resources(ids[pick % len(ids)], resources))
        else:
            written = self.call(self.store.add_resources(resources))
            assert written.resources_id not in self.model.resources
        self.agrees(written, self.model.write_resources(written.resources_id, resources))

    @rule(worker_id=st.sampled_from(["w1", "w2", "w9"]), stats=st.one_of(st.none(), notes))
    def worker_heartbeat(self, worker_id: str, stats: dict[str, int] | None) -> None:
        given = {} if stats is None else {"heartbeat_stats": stats}
        worker = self.call(self.store.update_worker(worker_id, **given))
        self.agrees(worker, self.model.heartbeat(worker_id, stats))

    @invariant()
    def the_store_holds_what_the_model_holds(self) -> None:
        self.model.at(self.clock.now)
        rollouts = list(self.run(self.store.query_rollouts()))
        assert [rollout.rollout_id for rollout in rollouts] == list(self.model.rollouts)
        for rollout in rollouts:
            self.agrees(rollout, self.model.rollouts[rollout.rollout_id])
            if rollout.status in ENDED_ROLLOUT:
                assert self.ended.setdefault(rollout.rollout_id, rollout.status) == rollout.status
            else:
                assert rollout.rollout_id not in self.ended
        workers = list(self.run(self.store.query_workers()))
        assert [worker.worker_id for worker in workers] == list(self.model.workers)
        for worker in workers:
            self.agrees(worker, self.model.workers[worker.worker_id])
        latest = self.run(self.store.get_latest_resources())
        if self.model.latest_resources is None:
            assert latest is None
        else:
            self.agrees(latest, self.model.latest_resources)

    def agrees(self, item: Any, expected: Any) -> None:
        """Every field that the model has is the same in the store's item, and so is the latest attempt of a rollout."""
        for name, value in vars(expected).items():
            if name not in ("attempts", "queue_position", "last_number"):
                assert getattr(item, name) == value, f"{name} of {item!r}: the model has {value!r}"
        if isinstance(expected, ModelRollout) and isinstance(item, Rollout):
            assert isinstance(item, AttemptedRollout) == bool(expected.attempts)
            if isinstance(item, AttemptedRollout):
                self.agrees(item.attempt, expected.latest)

    @rule(
        statuses=st.one_of(st.none(), st.lists(rollout_statuses, max_size=3)),
        picks=st.one_of(st.none(), st.lists(index, max_size=3)),
        part=st.one_of(st.none(), index),
        logic=st.sampled_from(["and", "or"]),
        sort_by=st.sampled_from([None, "rollout_id", "start_time", "end_time", "mode", "resources_id", "status"]),
        page=pages,
    )
    def query_rollouts(
        self,
        statuses: list[Any] | None,
        picks: list[int] | None,
        part: int | None,
        logic: Any,
        sort_by: str | None,
        page: dict[str, Any],
    ) -> None:
        tests: list[Callable[[ModelRollout], bool]] = []
        given: dict[str, Any] = {}
        if statuses is not None:
            given["status_in"] = statuses
            tests.append(lambda rollout: rollout.status in statuses)
        if picks is not None:
            ids = [self.any_rollout(pick).rollout_id for pick in picks] if self.model.rollouts else ["ro-none"]
            given["rollout_id_in"] = ids
            tests.append(lambda rollout: rollout.rollout_id in ids)
        if part is not None:
            text = self.any_rollout(part).rollout_id[-2:] if self.model.rollouts else "x"
            given["rollout_id_contains"] = text
            tests.append(lambda rollout: text in rollout.rollout_id)
        found = self.call(self.store.query_rollouts(**given, filter_logic=logic, sort_by=sort_by, **page))
        wanted, total = page_of(self.model.rollouts.values(), tests=tests, filter_logic=logic, sort_by=sort_by, **page)
        assert [rollout.rollout_id for rollout in found] == [rollout.rollout_id for rollout in wanted]
        assert (found.total, found.limit, found.offset) == (total, page["limit"], page["offset"])

    @precondition(lambda self: self.model.rollouts)
    @rule(
        pick=index,
        scope=st.one_of(st.none(), st.just("latest"), index),
        filters=st.fixed_dictionaries(
            {},
            optional={
                "trace_id": st.sampled_from(["aa" * 16, "ab" * 16]),
                "name": st.sampled_from(["call", "reward"]),
                "name_contains": st.sampled_from(["call", "_", "%"]),
                "span_id_contains": st.sampled_from(["1", "2"]),
                "parent_id_contains": st.sampled_from(["0", "3"]),
            },
        ),
        logic=st.sampled_from(["and", "or"]),
        sort_by=st.sampled_from([None, "sequence_id", "start_time", "name", "parent_id"]),
        page=pages,
    )
    def query_spans(
        self, pick: int, scope: Any, filters: dict[str, str], logic: Any, sort_by: str | None, page: dict[str, Any]
    ) -> None:
        rollout = self.any_rollout(pick)
        if self.model.spans:
            rollout = self.model.rollouts[self.model.spans[pick % len(self.model.spans)].rollout_id]
        if isinstance(scope, int):
            scope = rollout.attempts[scope % len(rollout.attempts)].attempt_id if rollout.attempts else "at-none"
        call = self.store.query_spans(rollout.rollout_id, scope, **filters, filter_logic=logic, sort_by=sort_by, **page)
        found = self.call(call)
        attempt_id = rollout.latest.attempt_id if scope == "latest" and rollout.latest else scope
        candidates = [
            span
            for span in self.model.spans
            if span.rollout_id == rollout.rollout_id and attempt_id in (None, span.attempt_id)
        ]
        tests = [_span_test(name, value) for name, value in filters.items()]
        wanted, total = page_of(candidates, tests=tests, filter_logic=logic, sort_by=sort_by, **page)
        assert list(found) == wanted
        assert found.total == total

    @rule(
        status=st.one_of(st.none(), st.sampled_from(["idle", "busy", "unknown"])),
        workers_by=st.sampled_from([None, "worker_id", "status", "current_rollout_id"]),
        resources_by=st.sampled_from([None, "resources_id", "update_time", "version"]),
        page=pages,
    )
    def query_workers_and_resources(
        self, status: Any, workers_by: str | None, resources_by: str | None, page: dict[str, Any]
    ) -> None:
        given: dict[str, Any] = {} if status is None else {"status_in": [status]}
        workers = self.call(self.store.query_workers(**given, sort_by=workers_by, **page))
        tests = [] if status is None else [lambda worker: worker.status == status]
        wanted, total = page_of(self.model.workers.values(), tests=tests, sort_by=workers_by, **page)
        assert [worker.worker_id for worker in workers] == [worker.worker_id for worker in wanted]
        assert workers.total == total
        resources = self.call(self.store.query_resources(sort_by=resources_by, **page))
        wanted, total = page_of(self.model.resources.values(), tests=[], sort_by=resources_by, **page)
        assert [update.resources_id for update in resources] == [update.resources_id for update in wanted]
        assert resources.total == total

    @precondition(lambda self: self.model.rollouts)
    @rule(pick=index)
    def look_around(self, pick: int) -> None:
        rollout = self.any_rollout(pick)
        attempts = list(self.call(self.store.query_attempts(rollout.rollout_id)))
        assert [attempt.attempt_id for attempt in attempts] == [attempt.attempt_id for attempt in rollout.attempts]
        for attempt, expected in zip(attempts, rollout.attempts, strict=True):
            self.agrees(attempt, expected)
        assert self.run(self.store.get_latest_attempt(rollout.rollout_id)) == (attempts[-1] if attempts else None)
        ids = list(self.model.rollouts)[::-1]
        ended = self.run(self.store.wait_for_rollouts(rollout_ids=ids, timeout=0))
        assert [rollout.rollout_id for rollout in ended] == [
            rollout_id for rollout_id in ids if self.model.rollouts[rollout_id].status in ENDED_ROLLOUT
        ]
        assert self.run(self.store.wait_for_work(0)) == bool(self.model.queue_places())
        statistics = self.run(self.store.statistics())
        assert statistics["total_rollouts"] == len(self.model.rollouts)
        assert statistics["total_attempts"] == len(self.model.attempts())
        assert statistics["total_spans"] == len(self.model.spans)
        assert statistics["total_workers"] == len(self.model.workers)


def _span_test(name: str, value: str) -> Callable[[Span], bool]:
    field = name.removesuffix("_contains")
    if field == name:
        return lambda span: getattr(span, field) == value
    return lambda span: value in (getattr(span, field) or "")


def run_machine(machine: Callable[[], StoreMachine], examples: int, **how: Any) -> None:
    """Let a machine take that many walks of 40 steps."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            database=None,
            phases=[Phase.generate],  # shrinking would run a store for many minutes; the same run fails again as it is
            suppress_health_check=list(HealthCheck),
            **how,
        ),
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_and_the_model_of_the_contract_never_differ(kind: str) -> None:
    run_machine(lambda: StoreMachine(kind), EXAMPLES.get(kind, FEW_EXAMPLES), derandomize=True)
