"""The keys and bounds of `serve`: from options and a file to the server."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from typer.testing import CliRunner

from mini_agentic_rl.cli import app
from mini_agentic_rl.gateway.limits import GatewayLimits
from mini_agentic_rl.jobs import serve


def _invoke(*arguments):
    return CliRunner().invoke(app, ["serve", *map(str, arguments)])


@pytest.fixture
def opened(monkeypatch):
    """What the server was opened with; it is not waited for."""
    seen = {}

    @contextmanager
    def open_server(**options):
        seen.update(options)
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(serve, "open_server", open_server)
    return seen


def test_keys_come_from_options_and_from_a_file(opened, tmp_path):
    (tmp_path / "keys").write_text("three\n\n  four  \n", encoding="utf-8")
    _invoke("--api-key", "one", "--api-key", "two", "--api-key-file", tmp_path / "keys")
    assert opened["api_keys"] == ["one", "two", "three", "four"]


def test_the_bounds_of_requests_are_options(opened):
    _invoke("--max-requests-per-minute", 60, "--max-concurrent-requests", 4, "--max-body-bytes", 1000)
    assert opened["limits"] == GatewayLimits(max_requests_per_minute=60, max_concurrent_requests=4, max_body_bytes=1000)
    assert opened["api_keys"] == []


@pytest.mark.parametrize(("content", "complaint"), [(None, "cannot be read"), ("\n \n", "holds no key")])
def test_a_file_without_keys_lets_nobody_in_by_mistake(tmp_path, content, complaint):
    path = tmp_path / "keys"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    result = _invoke("--api-key-file", path)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: --api-key-file ")
    assert complaint in result.stderr


def test_a_bound_that_cannot_work_names_its_option():
    result = _invoke("--max-requests-per-minute", 0)
    assert result.exit_code == 2
    assert "--max-requests-per-minute 0" in result.stderr
