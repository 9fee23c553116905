"""docs/gateway.md: the server that `serve` starts, asked as the page asks it, and algorithms with several models."""

from __future__ import annotations

import json

from openai import AsyncOpenAI

from mini_agentic_rl import Trainer, llm_rollout
from mini_agentic_rl.policy import DEFAULT_ADAPTER, LoraSettings, load_model
from mini_agentic_rl.policy.load import save_weights
from pages.shell import free_port, shell_line
from pages.snippets import python_block

PAGE = "docs/gateway.md"
PROXY = python_block(PAGE, "LLMProxy(model_list=models, store=store)")
SEVERAL = python_block(PAGE, "fixed_adapters=")


async def asked(llm, store, rollout):
    """Ask as an agent does; return what the store holds of it."""
    async with AsyncOpenAI(base_url=llm.endpoint, api_key="none") as client:
        await client.chat.completions.create(
            model=llm.model, messages=[{"role": "user", "content": rollout.input["question"]}], max_tokens=4
        )
    return await store.query_spans(rollout.rollout_id)


def test_a_server_answers_curl_and_stands_behind_a_proxy_that_records(here):
    port = free_port()
    found = {}

    def read():
        asks = shell_line(PAGE, "curl http://127.0.0.1:8000/v1/chat/completions")
        found["reply"] = json.loads(asks.run(replace={"127.0.0.1:8000": f"127.0.0.1:{port}"}))
        after = "# what an agent asks; its calls become spans of this rollout"
        found["proxy"] = PROXY.run(
            {"127.0.0.1:8000": f"127.0.0.1:{port}", after: "; spans.extend(await asked(llm, store, rollout))"},
            given={"asked": asked, "spans": found.setdefault("spans", [])},
        )

    shell_line(PAGE, "mini-agentic-rl serve --port 8000").serve(read, port=port)
    assert found["reply"]["choices"][0]["message"]["role"] == "assistant"
    endpoint, model = found["proxy"].printed.split()
    assert endpoint.startswith("http://127.0.0.1:")
    assert model == "critic"
    calls = [span for span in found["spans"] if span.attributes.get("gen_ai.request.model") == "critic"]
    assert len(calls) == 1, found["spans"]


def test_the_name_of_the_model_chooses_who_answers(here):
    save_weights(load_model("embedded", lora=LoraSettings()), here / "runs/user/adapter", DEFAULT_ADAPTER)
    kept = {'"embedded"': '"embedded", total_steps=0, keep_open=True'}
    expected = (
        ({"embedded"}, set()),
        ({"embedded", "assistant", "user"}, set()),
        ({"embedded"}, {"user"}),
    )
    for algorithm, (trained, beside) in zip(
        SEVERAL.run(kept, before="from mini_agentic_rl import MiniGRPO").values, expected, strict=True
    ):
        Trainer(algorithm=algorithm).fit(nothing, [{}])
        try:
            assert set(algorithm.served.trained_models) - {DEFAULT_ADAPTER} == trained
            names = set(algorithm.served.model_names) - {DEFAULT_ADAPTER}
            assert names == trained | beside | {"embedded-base"}
        finally:
            algorithm.close()


@llm_rollout
def nothing(task, llm):
    return 0.0
