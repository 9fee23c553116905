"""`train --optimize-prompt gepa`: a prompt is found with the untrained model, and the weights are trained under it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from mini_agentic_rl.errors import UserError
from mini_agentic_rl.jobs import EvalSettings, TrainConfig, eval_job, train_job
from mini_agentic_rl.store import open_store

sys.path.append(str(Path(__file__).parent.parent / "algorithm"))
from critic_server import completion, critic


def _config(model, folder, **settings):
    sizes = {"eval_size": 2, "max_samples": 8, "n_runners": 2, "total_steps": 1, "tasks_per_step": 1}
    sizes |= {"samples_per_prompt": 2, "sft_examples": 2, "max_new_tokens": 8}
    return TrainConfig(
        model=model,
        dtype="float32",
        device="cpu",
        output_dir=folder,
        optimize_prompt="gepa",
        **sizes,
        **{"agent": "math", **settings},
    )


def _messages(folder):
    import asyncio

    async def read():
        store = open_store(folder)
        try:
            found = []
            for rollout in await store.query_rollouts():
                spans = await store.query_spans(rollout.rollout_id, name="openai.chat.completion")
                found += [json.loads(span.attributes["gen_ai.input.messages"]) for span in spans]
            return found
        finally:
            await store.close()

    return asyncio.run(read())


def test_the_weights_are_trained_under_the_prompt_that_was_found(tiny_folder, tmp_path):
    folder = tmp_path / "run"
    with critic(lambda body: completion("<prompt>Answer by one number.</prompt>")) as (client, asked):
        config = _config(tiny_folder, folder, reflection_base_url=str(client.base_url), max_rollouts=8, pareto_size=2)
        train_job(config)
    assert asked
    best = (folder / "prompt_search" / "prompt" / "best_prompt.txt").read_text()
    said = {messages[0]["content"] for messages in _messages(folder) if messages[0]["role"] == "system"}
    assert said == {best}
    assert (folder / "adapter" / "adapter_model.safetensors").is_file()
    measure = {"model": tiny_folder, "device": "cpu", "size": 1, "max_new_tokens": 4, "output": tmp_path / "eval.json"}
    eval_job(EvalSettings(adapter=folder / "adapter", **measure))
    assert json.dumps(best)[1:-1] in (tmp_path / "eval.json").read_text()


def test_an_agent_without_a_prompt_is_told_so(tiny_folder, tmp_path):
    with pytest.raises(UserError, match="optimize_prompt"):
        train_job(_config(tiny_folder, tmp_path / "run", agent="sql"))
    with pytest.raises(UserError, match="prompt_file"):
        train_job(_config(tiny_folder, tmp_path / "run", prompt_file=tmp_path / "none.txt"))
