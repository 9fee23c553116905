"""A run folder of a real, tiny training; a store that others wrote into; and a dashboard server over both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from hostile import TEXTS
from letters import TASKS, CountLetters, Letters, algorithm
from recorded import add_rollout

from mini_agentic_rl import SqlLightningStore, Trainer
from mini_agentic_rl.apps.dashboard import DashboardServer, ShownRun, run_sources, store_source
from tiny import tiny_tokenizer

API = "/dashboard/api/runs"


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of two steps."""
    folder = tmp_path_factory.mktemp("runs") / "letters"
    trained = algorithm(total_steps=2, tasks_per_step=2, samples_per_prompt=4)
    Trainer(algorithm=trained, hooks=[CountLetters()], n_runners=4, output_dir=folder).fit(
        Letters(), TASKS, val_dataset=TASKS[:2]
    )
    tiny_tokenizer().save_pretrained(folder / "adapter")  # a model from a folder has its tokenizer there
    return folder


@pytest.fixture(scope="session")
def hostile_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose rollouts have the names and the texts of `hostile.TEXTS` everywhere where a text can stand."""
    path = tmp_path_factory.mktemp("hostile") / "rollouts.db"

    async def fill() -> None:
        store = SqlLightningStore(path)
        for index, (name, text) in enumerate(TEXTS.items()):
            short = text[:5000]
            await add_rollout(
                store,
                input={"name": name, "question": short},
                messages=[{"role": short[:50], "content": text}, {"role": "user", "content": [{"text": short}]}],
                reply={
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"id": short, "function": {"name": short, "arguments": short}}],
                },
                reward=None if index % 3 == 0 else index / 30,
                fail=short if index % 3 == 0 else None,
                worker="worker " + short[:100].encode("utf-8", "replace").decode(),
                metadata={"group": "0/0", "step": 0, "note": short, "answer": name},
            )
        await store.close()

    asyncio.run(fill())
    return path


@pytest.fixture(scope="session")
def serve() -> Iterator[Callable[..., SimpleNamespace]]:
    """A function that serves sources; each server is stopped at the end."""
    servers = []

    def start(*sources: ShownRun, **options) -> SimpleNamespace:
        server = DashboardServer(sources, port=0, **options).start()
        client = httpx.Client(base_url=server.root, timeout=60)
        servers.append((server, client))

        def get(path: str, **query):
            answer = client.get(f"{API}/{path}", params=query)
            assert answer.status_code == 200, answer.text
            return answer.json()

        return SimpleNamespace(root=server.root, client=client, get=get, sources=sources)

    yield start
    for server, client in servers:
        client.close()
        server.stop(1.0)


@pytest.fixture(scope="session")
def shown(run_folder, hostile_store, serve) -> SimpleNamespace:
    """A dashboard over the training and the hostile store."""
    return serve(*run_sources([run_folder]), store_source(SqlLightningStore(hostile_store), "hostile", owned=True))
