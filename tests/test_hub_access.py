"""A Hub that does not answer costs one look, not half a minute of further tries for each file."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import huggingface_hub
import pytest

from mini_agentic_rl import hub_access
from mini_agentic_rl.datasets.records import load_hub
from mini_agentic_rl.datasets.rows import DatasetError
from mini_agentic_rl.policy import ModelNotFoundError
from mini_agentic_rl.policy.load import resolve_model
from processes import free_port


@pytest.fixture
def endpoint(monkeypatch, tmp_path):
    """Makes an address the Hub's; nothing was ever fetched from it."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(hub_access, "_forbidden", lambda: False)
    hub_access._answers.cache_clear()
    yield lambda url: monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", url)
    hub_access._answers.cache_clear()


def test_one_that_does_not_answer_is_told_at_once(endpoint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    endpoint(f"http://127.0.0.1:{free_port()}")
    with pytest.raises(ModelNotFoundError, match=r"no folder 'owner/model'.*does not answer"):
        resolve_model("owner/model")
    with pytest.raises(DatasetError, match=r"owner/data cannot be loaded from the Hub .which does not answer"):
        load_hub("owner/data")
    assert hub_access._answers.cache_info().misses == 1
    assert huggingface_hub.constants.HF_HUB_OFFLINE  # what was fetched before is still found, without asking


def test_it_is_asked_again_once_it_answers(endpoint):
    endpoint(f"http://127.0.0.1:{free_port()}")
    assert not hub_access.ask_hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)  # answers 501: any answer is one
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        endpoint(f"http://127.0.0.1:{server.server_port}")
        assert hub_access.ask_hub()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert not huggingface_hub.constants.HF_HUB_OFFLINE


def test_a_folder_without_a_model_is_named(tmp_path):
    with pytest.raises(ModelNotFoundError, match=r"no model in the folder .*config\.json"):
        resolve_model(str(tmp_path))
