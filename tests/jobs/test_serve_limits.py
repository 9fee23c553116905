"""The keys and bounds of `serve`: from options and a file to the server."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import httpx
import pytest

from command_line import invoke
from mini_agentic_rl.commands import serve
from mini_agentic_rl.commands.serve import ServeSettings
from mini_agentic_rl.http import RequestLimits


def test_keys_and_bounds_of_requests_are_options(tmp_path, monkeypatch):
    opened = []

    @contextmanager
    def open_server(settings):
        opened.append(settings)
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(serve, "open_server", open_server)
    (tmp_path / "keys").write_text("three\r\n\r\n  four  \r\n", encoding="utf-8-sig")  # as an editor on Windows
    invoke("serve", "--api-key", "one", "--api-key", "two", "--api-key-file", tmp_path / "keys")
    server = opened[0].server
    assert serve.accepted_keys(server.host, server.api_key, server.api_key_file) == ["one", "two", "three", "four"]
    invoke("serve", "--max-requests-per-minute", 60, "--max-concurrent-requests", 4, "--max-body-bytes", 1000)
    assert opened[1].limits == RequestLimits(max_requests_per_minute=60, max_concurrent_requests=4, max_body_bytes=1000)
    assert opened[1].server.api_key == []


@pytest.mark.parametrize(("content", "complaint"), [(None, "cannot be read"), ("\n \n", "holds no key")])
def test_a_file_without_keys_opens_no_server(tmp_path, content, complaint):
    path = tmp_path / "keys"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    result = invoke("serve", "--api-key-file", path)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: --api-key-file: ")
    assert complaint in result.stderr


def test_a_full_queue_refuses_requests_and_the_model_has_its_short_name(tiny_folder):
    settings = ServeSettings(
        model=tiny_folder, port=0, dtype="float32", device="cpu", max_waiting=1, served_model_name="mine"
    )
    with serve.open_server(settings.changed(engine={"max_running": 1})) as server:
        names = [row["id"] for row in httpx.get(f"{server.endpoint}/models").json()["data"]]
        assert names[:2] == ["mine", "mine-base"]
        body = {"model": "mine", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 200}
        post = partial(httpx.post, f"{server.endpoint}/chat/completions", json=body, timeout=120)
        with ThreadPoolExecutor(24) as pool:
            answers = [future.result() for future in [pool.submit(post) for _ in range(24)]]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert refused
    assert len(refused) < len(answers)
    assert all(int(answer.headers["Retry-After"]) >= 1 for answer in refused)
    assert "max_waiting" in refused[0].json()["error"]["message"]
