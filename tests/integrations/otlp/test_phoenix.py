"""Traces in a real Phoenix, started here and asked over its own API: `make test-traces`.

PHOENIX_PYTHON is a Python that has `arize-phoenix`. Its models of the conventions' JSON schemas check the messages.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import time
from pathlib import Path

import httpx
import pytest

from integrations.otlp.recorded import two_calls
from mini_agentic_rl.store import InMemoryLightningStore
from mini_agentic_rl.trainer import TraceExportSettings, exported

PYTHON = os.environ.get("PHOENIX_PYTHON", "")
PROJECT = "default"

pytestmark = [
    pytest.mark.skipif(
        not Path(PYTHON).exists() or not PYTHON,
        reason="NOT CHECKED: traces in a real Phoenix; `make test-traces` does, in an environment with arize-phoenix",
    ),
    pytest.mark.timeout(900),
]


@pytest.fixture(scope="module")
def phoenix(tmp_path_factory):
    """Return the address of a Phoenix that keeps its traces in an empty folder."""
    folder = tmp_path_factory.mktemp("phoenix")
    with socket.socket() as free, socket.socket() as other:
        free.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        port, grpc = free.getsockname()[1], other.getsockname()[1]
    environment = {
        **{name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")},
        "PHOENIX_WORKING_DIR": str(folder),
        "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(grpc),
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_TELEMETRY_ENABLED": "false",
    }
    with (folder / "log").open("wb") as log:
        command = [PYTHON, "-m", "phoenix.server.main", "serve"]
        process = subprocess.Popen(command, env=environment, cwd=folder, stdout=log, stderr=log)
    try:
        address, end = f"http://127.0.0.1:{port}", time.monotonic() + 600
        while not _answers(address):
            assert process.poll() is None, (folder / "log").read_text()[-3000:]
            assert time.monotonic() < end, (folder / "log").read_text()[-3000:]
            time.sleep(0.5)
        yield address
    finally:
        process.terminate()
        process.wait(60)


def _answers(address):
    try:
        return httpx.get(f"{address}/healthz", timeout=5).is_success
    except httpx.HTTPError:
        return False


def read_back(address, expected):
    """Return the spans of the project when there are as many as expected, by name."""
    end = time.monotonic() + 120
    while True:
        answer = httpx.get(f"{address}/v1/projects/{PROJECT}/spans", params={"limit": 1000}, timeout=30)
        spans = answer.json()["data"] if answer.is_success else []
        if len(spans) >= expected:
            return spans
        assert time.monotonic() < end, answer.text[:2000]
        time.sleep(0.2)


@pytest.fixture(scope="module")
def shown(phoenix):
    """Return the spans that Phoenix has of one rollout."""

    async def record():
        store = InMemoryLightningStore()
        with exported(store, TraceExportSettings(otlp=phoenix), agent="calculating") as through:
            return await two_calls(through)

    rollout_id = asyncio.run(record())
    spans = read_back(phoenix, 7)
    assert {span["attributes"]["agentlightning.rollout_id"] for span in spans} == {rollout_id}
    return spans


def named(spans, name):
    return [span for span in spans if span["name"] == name]


def test_phoenix_shows_one_trace_with_its_kinds_messages_tools_and_token_counts(shown):
    (root,) = named(shown, "invoke_agent calculating")
    assert len({span["context"]["trace_id"] for span in shown}) == 1
    assert {span["parent_id"] for span in shown if span is not root} == {root["context"]["span_id"]}
    kinds = {span["name"]: span["span_kind"] for span in shown}
    assert kinds["invoke_agent calculating"] == "AGENT"
    assert (kinds["chat policy"], kinds["execute_tool calculate"]) == ("LLM", "TOOL")
    _, second = sorted(named(shown, "chat policy"), key=lambda span: span["start_time"])
    facts = second["attributes"]
    assert facts["llm.model_name"] == "policy"
    assert (facts["llm.token_count.prompt"], facts["llm.token_count.completion"]) == (40, 3)
    for name, text in (("llm.input_messages.", "What is 6 * 7?"), ("llm.output_messages.", "It is 42.")):
        assert any(key.startswith(name) and text in str(value) for key, value in facts.items())
    (tool,) = named(shown, "execute_tool calculate")
    assert tool["attributes"]["tool.name"] == "calculate"


def test_messages_are_valid_by_the_schemas_of_the_conventions(shown):
    calls = named(shown, "chat policy")
    messages = {
        "ChatMessage": [one for span in calls for one in json.loads(span["attributes"]["gen_ai.input.messages"])],
        "OutputMessage": [one for span in calls for one in json.loads(span["attributes"]["gen_ai.output.messages"])],
        "FunctionToolDefinition": [
            one for span in calls for one in json.loads(span["attributes"]["gen_ai.tool.definitions"])
        ],
    }
    assert all(len(rows) > 1 for rows in messages.values())
    program = (
        "import json, sys\n"
        "from phoenix.trace.gen_ai.__generated__ import models\n"
        "for name, rows in json.load(sys.stdin).items():\n"
        "    for row in rows:\n"
        "        found = getattr(models, name).model_validate(row)\n"
        "        for part in getattr(found, 'parts', []):\n"
        "            part = getattr(part, 'root', part)\n"
        "            assert not type(part).__name__.startswith('Generic'), (row, part)\n"
    )
    done = subprocess.run([PYTHON, "-c", program], input=json.dumps(messages), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
