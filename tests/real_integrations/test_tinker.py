"""The real `tinker` client, and recipes of `tinker-cookbook` as they are, against the server."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from mini_agentic_rl.integrations.tinker import TinkerServer
from pages.test_values import TINKER as TRAINING

tinker = pytest.importorskip("tinker", reason="tinker is not installed: its client is left unchecked")

TOKENS = [5, 6, 7, 8, 9, 10]
KNOWN = "Qwen/Qwen3-8B"
"""A name that the cookbook knows a conversation's format of."""


@pytest.fixture(scope="module")
def server(tiny_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("out")
    server = TinkerServer.load(tiny_folder, folder, names=["tiny", KNOWN], load={"dtype": "float32"}).start()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(server).items():
            patch.setenv(name, value)
        yield server
    server.stop()


@pytest.fixture
def service(server):
    with tinker.ServiceClient() as client:
        yield client


def environment(server: TinkerServer) -> dict[str, str]:
    return {
        "TINKER_BASE_URL": server.root,
        "TINKER_API_KEY": "tml-local",
        "TINKER_TELEMETRY": "0",
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
    }


def datum(tokens=TOKENS, **inputs):
    given = {"target_tokens": tokens[1:], "weights": [1.0] * (len(tokens) - 1), **inputs}
    return tinker.types.Datum(
        model_input=tinker.types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={name: value for name, value in given.items() if value is not None},
    )


def sampled(tokens, logprobs, advantage):
    count = len(tokens) - 1
    return datum(tokens, weights=None, logprobs=logprobs, advantages=[advantage] * count)


def test_a_client_trains_samples_saves_and_goes_on(service):
    client = service.create_lora_training_client(base_model="tiny", rank=4, seed=1).result()
    assert client.get_tokenizer().decode(TOKENS)
    losses = []
    for _ in range(4):
        done = client.forward_backward([datum()] * 2, "cross_entropy")
        step = client.optim_step(tinker.types.AdamParams(learning_rate=1e-2, grad_clip_norm=1.0))
        losses.append(done.result().metrics["loss:sum"])
        assert step.result().metrics["learning_rate:mean"] == 1e-2
    assert losses == sorted(losses, reverse=True)
    learnt = client.forward([datum()], "cross_entropy").result().loss_fn_outputs[0]["logprobs"].to_numpy()
    sampler = client.save_weights_and_get_sampling_client().result()
    prompt = tinker.types.ModelInput.from_ints(TOKENS)
    assert np.allclose(sampler.compute_logprobs(prompt).result()[1:], learnt, atol=1e-4)
    path = client.save_state("state").result().path
    again = service.create_training_client_from_state_with_optimizer(path).result()
    for each in (client, again):
        each.forward_backward([datum()], "cross_entropy").result()
        each.optim_step(tinker.types.AdamParams(learning_rate=1e-2)).result()
    both = [c.forward([datum()], "cross_entropy").result().loss_fn_outputs[0]["logprobs"] for c in (client, again)]
    assert np.allclose(both[0].to_numpy(), both[1].to_numpy(), atol=1e-6)
    # the weights that were saved before the last step are what this client samples with still
    assert np.allclose(sampler.compute_logprobs(prompt).result()[1:], learnt, atol=1e-4)


def test_what_is_sampled_has_the_learner_s_logprobs_and_is_trained_by_each_loss(service):
    client = service.create_lora_training_client(base_model="tiny", rank=4).result()
    client.forward_backward([datum()], "cross_entropy").result()
    client.optim_step(tinker.types.AdamParams(learning_rate=1e-2)).result()
    sampler = client.save_weights_and_get_sampling_client().result()
    prompt = TOKENS[:2]
    params = tinker.types.SamplingParams(max_tokens=6, temperature=1.0, seed=7, stop=[])
    answer = sampler.sample(
        tinker.types.ModelInput.from_ints(prompt),
        3,
        params,
        include_prompt_logprobs=True,
        topk_prompt_logprobs=2,
        topk_sample_logprobs=2,
    ).result()
    assert len({tuple(each.tokens) for each in answer.sequences}) > 1
    assert answer.prompt_logprobs[0] is None
    assert len(answer.topk_prompt_logprobs[1]) == 2
    data = []
    for each in answer.sequences:
        assert (len(each.tokens), each.stop_reason) == (6, "length")
        assert each.topk_logprobs_np.token_ids.shape == (6, 2)
        full = prompt + list(each.tokens)
        logprobs = [0.0] * (len(prompt) - 1) + list(each.logprobs)
        data.append(sampled(full, logprobs, 1.0))
        found = client.forward([datum(full)], "cross_entropy").result().loss_fn_outputs[0]["logprobs"].to_numpy()
        assert np.allclose(found[len(prompt) - 1 :], each.logprobs, atol=1e-4)
    same = sampler.sample(tinker.types.ModelInput.from_ints(prompt), 3, params).result()
    assert [each.tokens for each in same.sequences] == [each.tokens for each in answer.sequences]
    for loss in ("importance_sampling", "ppo", "cispo", "dro"):
        result = client.forward_backward(data, loss).result()
        assert len(result.loss_fn_outputs) == 3
        assert client.optim_step(tinker.types.AdamParams(learning_rate=1e-4)).result().metrics["grad_norm:mean"] > 0


def test_a_loss_that_only_the_client_has_learns_as_one_of_the_server_s(service):
    def nll(data, logprobs):
        loss = -torch.cat(logprobs).sum()
        return loss, {"nll": loss.item()}

    learnt = []
    for custom in (True, False):
        client = service.create_lora_training_client(base_model="tiny", rank=4, seed=3).result()
        if custom:
            assert client.forward_backward_custom([datum()], nll).result().metrics["nll"] > 0
        else:
            client.forward_backward([datum()], "cross_entropy").result()
        client.optim_step(tinker.types.AdamParams(learning_rate=1e-2)).result()
        learnt.append(client.forward([datum()], "cross_entropy").result().metrics["loss:sum"])
    assert learnt[0] == pytest.approx(learnt[1], abs=1e-4)


def test_a_bad_request_fails_alone_with_an_error_of_the_client_s_class(service):
    client = service.create_lora_training_client(base_model="tiny", rank=4).result()
    with pytest.raises(tinker.RequestFailedError, match="token id 9999, which is outside 0") as caught:
        client.forward_backward([datum(target_tokens=[1, 2, 3, 4, 9999])], "cross_entropy").result()
    assert caught.value.category == "user"
    assert client.forward_backward([datum()], "cross_entropy").result().metrics["loss:sum"] > 0
    with pytest.raises(tinker.RequestFailedError, match="'nobody/nothing' is not served here"):
        service.create_lora_training_client(base_model="nobody/nothing").result()
    with pytest.raises(tinker.NotFoundError, match="no weights at"):
        service.create_sampling_client(model_path="tinker://a/weights/b").result()


def test_the_page_s_example_runs_as_it_stands(server):
    name = server.service.model.names[0]
    ran = TRAINING.run({'"embedded"': repr(name)})
    assert ran.names["losses"] == sorted(ran.names["losses"], reverse=True)
    assert len(ran.names["answer"].sequences) == 2
    assert "/weights/after-3-steps" in ran.printed


def run_recipe(module: str, here: Path, server: TinkerServer, **options: object) -> list[dict]:
    """Run a recipe by its own command line; return its metrics."""
    pytest.importorskip("tinker_cookbook", reason="tinker-cookbook is not installed: its recipes are left unchecked")
    given = {"model_name": server.service.model.tokenizer_id, "log_path": here / "log", **options}
    ran = subprocess.run(
        [sys.executable, "-m", f"tinker_cookbook.recipes.{module}", *(f"{k}={v}" for k, v in given.items())],
        cwd=here,
        env={**os.environ, **environment(server)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-6000:]
    return [json.loads(line) for line in (here / "log" / "metrics.jsonl").read_text().splitlines()]


def test_the_cookbook_s_rl_on_arithmetic(server, tmp_path):
    steps = run_recipe(
        "math_rl.train",
        tmp_path,
        server,
        renderer_name="role_colon",
        loss_fn="importance_sampling",
        group_size=4,
        groups_per_batch=4,
        max_steps=2,
        lora_rank=4,
        save_every=1,
        eval_every=0,
    )
    assert len([step for step in steps if "env/all/reward/total" in step]) == 2
    assert all(abs(step["optim/kl_sample_train_v1"]) < 1e-3 for step in steps if "optim/kl_sample_train_v1" in step)


def test_the_cookbook_s_on_policy_distillation(server, tmp_path):
    # What the recipe would fetch from the hub: `datasets` takes a folder of that name first.
    rows = [{"question": f"What is {number} + 1?"} for number in range(8)]
    write_rows(tmp_path / "zwhe99" / "DeepMath-103K", rows)
    steps = run_recipe(
        "distillation.on_policy_distillation",
        tmp_path,
        server,
        teacher_model="tiny",
        renderer_name="role_colon",
        group_size=2,
        groups_per_batch=2,
        max_tokens=8,
        max_steps=2,
        lora_rank=4,
        eval_every=0,
        save_every=0,
    )
    assert all("teacher_kl" in step for step in steps if "optim/lr" in step)


@pytest.mark.parametrize("loop", ["sl_loop", "rl_loop"])
def test_the_cookbook_s_loops_that_look_the_model_up_by_its_name(loop, server, tiny_folder, tmp_path):
    # What would be fetched by name is taken from folders of these names.
    shutil.copytree(tiny_folder, tmp_path / KNOWN)
    talk = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]
    write_rows(tmp_path / "HuggingFaceH4" / "no_robots", [{"messages": talk}] * 8)
    write_rows(tmp_path / "openai" / "gsm8k", [{"question": "2 + 2?", "answer": "so #### 4"}] * 8)
    files = "configs:\n- config_name: main\n  data_files: train.jsonl\n"
    (tmp_path / "openai" / "gsm8k" / "README.md").write_text(f"---\n{files}---\n")
    sizes = {"batch_size": 4, "max_steps": 2, "lora_rank": 4, "save_every": 0}
    sizes |= {"group_size": 2, "max_tokens": 8, "loss_fn": "importance_sampling"} if loop == "rl_loop" else {}
    steps = run_recipe(loop, tmp_path, server, model_name=KNOWN, **sizes)
    assert len(steps) == 2
    saved = [json.loads(line) for line in (tmp_path / "log" / "checkpoints.jsonl").read_text().splitlines()]
    assert saved[-1]["state_path"].endswith("/weights/final")


def write_rows(folder: Path, rows: list[dict]) -> None:
    folder.mkdir(parents=True)
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
