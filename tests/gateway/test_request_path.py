"""How many files of the gateway one chat request crosses: who follows it has to open so many.

`python -m pytest -n 0 -s tests/gateway/test_request_path.py` prints them.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import openai
import pytest

import mini_agentic_rl.gateway
from mini_agentic_rl.store import InMemoryLightningStore

from .tiny_server import tiny_server

GATEWAY = Path(mini_agentic_rl.gateway.__file__).parent
MOST_FILES = 15


@pytest.mark.parametrize("stream", [False, True])
def test_a_recorded_chat_request_crosses_few_files(stream: bool) -> None:
    store = InMemoryLightningStore()
    rollout = asyncio.run(store.start_rollout({"question": "?"}))
    crossed: set[str] = set()
    watching = threading.Event()

    def profile(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and watching.is_set() and code.co_name != "<module>":
            path = Path(code.co_filename)
            if GATEWAY in path.parents:
                crossed.add(str(path.relative_to(GATEWAY)))

    threading.setprofile(profile)  # for the threads that are started from here on: the server's is one
    try:
        with tiny_server(store=store) as tiny:
            resource = tiny.server.as_resource().for_rollout(rollout.rollout_id, rollout.attempt.attempt_id)
            client = openai.OpenAI(base_url=resource.endpoint, api_key="none", max_retries=0)
            watching.set()
            messages = [{"role": "user", "content": "hi"}]
            answer = client.chat.completions.create(model="tiny", messages=messages, max_tokens=4, stream=stream)
            if stream:
                list(answer)
            tiny.wait_for_rest()
            watching.clear()
    finally:
        threading.setprofile(None)
    print(f"\n{len(crossed)} files:", *sorted(crossed))
    assert "completion/record.py" in crossed
    assert len(crossed) <= MOST_FILES
