"""The servers that docs/ starts, and what the pages ask of them."""

from __future__ import annotations

import asyncio
import json

from openai import AsyncOpenAI

from mini_agentic_rl import LightningStoreServer, SqlLightningStore, Trainer, llm_rollout
from mini_agentic_rl.policy import DEFAULT_ADAPTER, LoraSettings, load_model
from mini_agentic_rl.policy.load import save_weights
from pages.shell import shell_line
from pages.snippets import python_block
from processes import free_port

GATEWAY = "docs/gateway.md"
PROXY = python_block(GATEWAY, "LLMProxy(model_list=models, store=store)")
SEVERAL = python_block(GATEWAY, "fixed_adapters=")
FROM_USE = "docs/learning-from-use.md"
SESSION = python_block(FROM_USE, "sessions.reward(opened.id, 1.0)")
COMMANDS = "docs/commands.md"


async def call(llm, store, rollout):
    """Call the model as an agent does; return what the store holds of it."""
    async with AsyncOpenAI(base_url=llm.endpoint, api_key="none") as client:
        await client.chat.completions.create(
            model=llm.model, messages=[{"role": "user", "content": rollout.input["question"]}], max_tokens=4
        )
    return await store.query_spans(rollout.rollout_id)


def test_a_server_answers_curl_and_stands_behind_a_proxy_that_records(here):
    port, results = free_port(), {}

    def read():
        address = {"127.0.0.1:8000": f"127.0.0.1:{port}"}
        curl = shell_line(GATEWAY, "curl http://127.0.0.1:8000/v1/chat/completions")
        results["reply"] = json.loads(curl.run(replace=address))
        after = "# what an agent asks; its calls become spans of this rollout"
        spans = results["spans"] = []
        calling = {after: "; spans.extend(await call(llm, store, rollout))"}
        results["proxy"] = PROXY.run(address | calling, given={"call": call, "spans": spans})

    shell_line(GATEWAY, "mini-agentic-rl serve --port 8000").serve(read, port=port)
    assert results["reply"]["choices"][0]["message"]["role"] == "assistant"
    endpoint, model = results["proxy"].printed.split()
    assert endpoint.startswith("http://127.0.0.1:")
    assert model == "critic"
    assert [span.attributes.get("gen_ai.request.model") for span in results["spans"]].count("critic") == 1


@llm_rollout
def nothing(task, llm):
    return 0.0


def test_the_name_of_the_model_chooses_who_answers(here):
    save_weights(load_model("embedded", lora=LoraSettings()), here / "runs/user/adapter", DEFAULT_ADAPTER)
    open_ = {'"embedded"': '"embedded", total_steps=0, keep_open=True'}
    algorithms = SEVERAL.run(open_, before="from mini_agentic_rl import MiniGRPO").values
    expected = (({"embedded"}, set()), ({"embedded", "assistant", "user"}, set()), ({"embedded"}, {"user"}))
    for algorithm, (trained, fixed) in zip(algorithms, expected, strict=True):
        Trainer(algorithm=algorithm).fit(nothing, [{}])
        try:
            assert set(algorithm.served.trained_models) - {DEFAULT_ADAPTER} == trained
            names = set(algorithm.served.model_names) - {DEFAULT_ADAPTER}
            assert names == trained | fixed | {"embedded-base"}
        finally:
            algorithm.close()


def test_a_session_is_opened_and_judged_later_and_the_learner_finds_it(here):
    port, printed = free_port(), []

    def read():
        printed.append(SESSION.run({"127.0.0.1:8000": f"127.0.0.1:{port}"}).printed)

    shell_line(FROM_USE, "serve --learn-from-use").serve(read, port=port)
    assert printed[0].split() == ["judged"]
    # a session alone with a new key waits
    learnt = shell_line(FROM_USE, "learn runs/use").run("--once", "--min-sessions", "1")
    assert learnt.split("; ") == ["no step was taken", "version 0\n"]


def test_a_store_is_served_and_looked_into(here):
    port, shown = free_port(), []

    async def fill() -> str:
        store = SqlLightningStore(here / "runs/store.db")
        rollout = await store.start_rollout({"question": "1 + 2"}, worker_id="worker-1")
        await store.update_attempt(rollout.rollout_id, "latest", status="failed", metadata={"error": "KeyError"})
        await store.close()
        return rollout.rollout_id

    (here / "runs").mkdir()
    rollout_id = asyncio.run(fill())
    assert rollout_id in shell_line(COMMANDS, "agl rollouts list --store runs/store.db").run()
    assert rollout_id in shell_line(COMMANDS, "agl rollouts retry").run()
    shell_line(COMMANDS, "agl spans show ro-3f2a --store runs").run(replace={"ro-3f2a": rollout_id})

    def read() -> None:
        address = {"localhost:9999": f"127.0.0.1:{port}"}
        shown.append(shell_line(COMMANDS, "agl workers --store http://localhost:9999").run(replace=address))

    served = shell_line(COMMANDS, "agl store --port 9999").serve(read, port=port)
    assert f"at http://127.0.0.1:{port}" in served
    assert "worker-1" in shown[0]


def test_the_store_of_several_machines_is_looked_into(here):
    port = free_port()

    async def look():
        store = SqlLightningStore(here / "store.db")
        rollout = await store.start_rollout({"question": "1 + 2"}, worker_id="worker-1")
        await store.update_attempt(rollout.rollout_id, "latest", status="running")
        server = LightningStoreServer(store, port=port)
        await server.start()
        try:
            address = {"localhost:4747": f"127.0.0.1:{port}"}
            parts = ("agl workers --store", "agl rollouts list --store http")
            lines = [shell_line("docs/scaling.md", part) for part in parts]
            return rollout.rollout_id, [await asyncio.to_thread(line.run, replace=address) for line in lines]
        finally:
            await server.stop()
            await store.close()

    rollout_id, (workers, running) = asyncio.run(look())
    assert "worker-1" in workers
    assert rollout_id in running
