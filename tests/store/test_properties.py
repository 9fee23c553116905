"""Every store, driven by hypothesis side by side with a plain model of the contract: what asks, and the test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

from mini_agentic_rl.types import Span

from .conftest import KINDS
from .machine import StoreMachine, index, rollout_statuses
from .model import ENDED_ROLLOUT, ModelRollout, page_of

EXAMPLES = {"memory": 30, "sqlite": 8}
FEW_EXAMPLES = 3

pages = st.fixed_dictionaries(
    {
        "sort_order": st.sampled_from(["asc", "desc"]),
        "limit": st.integers(-1, 4),
        "offset": st.integers(0, 3),
    }
)


class AskedMachine(StoreMachine):
    """A machine that asks as well."""

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
    run_machine(lambda: AskedMachine(kind), EXAMPLES.get(kind, FEW_EXAMPLES), derandomize=True)
