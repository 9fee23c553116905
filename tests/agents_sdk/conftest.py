"""Real agents, real server, no internet: telemetry is off, and whoever looks beyond this machine is caught."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from .calling_model import save_calling_model
from .training import save_tasks

EXAMPLES = Path(__file__).parents[2] / "examples" / "agents"
sys.path.insert(0, str(EXAMPLES))
os.environ.update(
    ANONYMIZED_TELEMETRY="False",
    CREWAI_DISABLE_TELEMETRY="true",
    CREWAI_DISABLE_VERSION_CHECK="true",
    CREWAI_TRACING_ENABLED="false",
    HF_HUB_DISABLE_TELEMETRY="1",
    HF_HUB_OFFLINE="1",
    LANGSMITH_TRACING="false",
    OPENAI_AGENTS_DISABLE_TRACING="1",
)

_LOCAL = ("127.0.0.1", "::1", "localhost", "0.0.0.0", "", None)
_reached: list[str] = []


def _watch(event: str, arguments: tuple) -> None:
    if event == "socket.getaddrinfo":
        host = arguments[0]
    elif event == "socket.connect" and isinstance(arguments[1], tuple):
        host = arguments[1][0]
    else:
        return
    if (host.decode() if isinstance(host, bytes) else host) not in _LOCAL:
        _reached.append(str(host))
        raise OSError(f"no test may reach {host}")


sys.addaudithook(_watch)


@pytest.fixture(autouse=True)
def _nothing_leaves_this_machine():
    _reached.clear()
    yield
    assert _reached == []


@pytest.fixture(scope="session")
def calling_folder(tmp_path_factory):
    """A tiny model that calls the calculator, as `--model` takes it."""
    return save_calling_model(tmp_path_factory.mktemp("models") / "calling")


@pytest.fixture(scope="session")
def tasks_file(tmp_path_factory):
    """Problems for it, as `--dataset` takes them."""
    return save_tasks(tmp_path_factory.mktemp("tasks") / "tasks.jsonl")
