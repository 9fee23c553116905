"""Requests made up from the server's own OpenAPI document, well formed and not: none of them breaks it."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, reject, seed, settings
from hypothesis import strategies as st

from mini_agentic_rl.store import LightningStore, LightningStoreServer
from mini_agentic_rl.store.http import routes

from .conftest import make_store
from .test_contract import span_of

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed: the HTTP API is not fuzzed")

EXAMPLES = 3


async def _serve(store: LightningStore) -> tuple[LightningStoreServer, dict[str, str]]:
    """A server whose store holds an attempt, and the ids that name it."""
    claimed = await store.start_rollout({"n": 1}, worker_id="w")
    await store.add_span(span_of(claimed))
    await store.update_resources("rs", {})
    server = LightningStoreServer(store, port=0)
    await server.start()
    ids = {"rollout_id": claimed.rollout_id, "attempt_id": claimed.attempt.attempt_id}
    return server, {**ids, "worker_id": "w", "resources_id": "rs"}


@pytest.mark.parametrize("kind", ["sqlite"])
def test_no_request_made_from_the_openapi_document_is_answered_with_a_failure_of_the_server(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(routes, "HOLD_SECONDS", 0.01)
    server, known = asyncio.run(_serve(make_store(kind, tmp_path)))
    schema = schemathesis.openapi.from_url(f"{server.endpoint}/openapi.json").exclude(path=routes.TRACES)
    modes = schemathesis.GenerationMode
    statuses: dict[str, set[int]] = {}

    def probe(operation: Any) -> None:
        cases = st.one_of(
            operation.as_strategy(generation_mode=modes.POSITIVE), operation.as_strategy(generation_mode=modes.NEGATIVE)
        )

        @seed(0)
        @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(data=st.data(), real=st.booleans())
        def ask(data: st.DataObject, real: bool) -> None:
            try:
                case: Any = data.draw(cases)
            except schemathesis.errors.UnsupportedSchema:  # made wrong in a way that it cannot express itself
                reject()
            if real:
                for name in case.path_parameters:
                    case.path_parameters[name] = known[name]
                if isinstance(case.body, dict):
                    case.body.update({name: value for name, value in known.items() if name in case.body})
            response = case.call(timeout=10)
            assert response.status_code < 500, f"{operation.label}: {response.status_code} {response.text}"
            statuses.setdefault(operation.label, set()).add(response.status_code)

        ask()

    with caplog.at_level(logging.ERROR):
        for result in schema.get_all_operations():
            probe(result.ok())
    asyncio.run(server.close())
    assert len(statuses) == len(routes.ROUTES) + 1  # and the health
    assert not [record.message for record in caplog.records if record.levelno >= logging.ERROR]
    reached = [label for label, seen in statuses.items() if seen & {200, 201}]
    assert len(reached) > 20, statuses
