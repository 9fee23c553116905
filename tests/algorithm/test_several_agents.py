"""Several agents in one rollout on a tiny model: one trained beside fixed ones, or each with an adapter of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from letters import Asking, Kept, fit
from two_agents import NAMES, TASKS, Two, algorithm

from helpers import tiny_policy
from mini_agentic_rl import InMemoryLightningStore, LitAgent, MiniGRPO
from mini_agentic_rl.adapter import spans_to_records
from mini_agentic_rl.algorithm import grpo
from mini_agentic_rl.algorithm.measure import Measure
from mini_agentic_rl.algorithm.settings import WarmStart, WarmStartSettings
from mini_agentic_rl.emitter import emit_reward
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.gateway.http.server import MiniLLMServer
from mini_agentic_rl.gateway.proxy import LLMProxy
from mini_agentic_rl.policy import LoraSettings, PolicyError, load_model
from mini_agentic_rl.policy.load import save_weights
from mini_agentic_rl.samplers import PolicySampler
from mini_agentic_rl.trainer import RunFolder
from tiny import tiny_model, tiny_tokenizer

GROUP = 4


# One is trained, the other one is fixed


class WithUser(Asking):
    """Two calls of the model that is trained, and between them one of a user who is not."""

    async def rollout_async(self, task, resources, rollout):
        llm = resources["main_llm"]
        await self.ask(rollout, llm, f"{task['word']} 1")
        await self.ask(rollout, resources["customer"], "what now", "customer", max_tokens=6, temperature=1.0)
        return float(len(await self.ask(rollout, llm, f"{task['word']} 2")))


def _train(agent: LitAgent, trainer: dict[str, Any] | None = None, **options: Any) -> tuple[MiniGRPO, Kept]:
    tokenizer = tiny_tokenizer()
    settings = {"total_steps": 1, "tasks_per_step": 1, "samples_per_prompt": GROUP, "max_new_tokens": 6, "seed": 1}
    trained = MiniGRPO(tiny_model(len(tokenizer)), tokenizer, **{**settings, **options})
    return trained, fit(trained, agent, TASKS[:1], **(trainer or {}))


def _assert_two_of_three_calls_trained(trained: MiniGRPO, kept: Kept) -> None:
    assert trained.summary["untrained"] == {}
    (row,) = kept.steps
    assert (row["rollout/calls"], row["rollout/calls_left_out"]) == (2, GROUP)
    assert row["grad_norm"] > 0


def test_the_fixed_agent_may_be_a_saved_adapter_which_stays_as_it_was(tmp_path):
    tokenizer = tiny_tokenizer()
    before = load_model(tiny_model(len(tokenizer)), lora=LoraSettings(target_modules=("q_proj", "down_proj"), r=4))
    for matrix in before.trainable():
        torch.nn.init.normal_(matrix, std=0.1)
    save_weights(before, tmp_path / "customer")
    trained, kept = _train(
        WithUser(), fixed_adapters={"customer": tmp_path / "customer"}, keep_open=True, total_steps=2
    )
    model = trained.served.policy.model
    fixed = [p for name, p in model.base.named_parameters() if ".customer." in name]
    try:
        assert model.versions == {"default": 2, "customer": 0}
        for one, other in zip(before.trainable(), fixed, strict=True):
            torch.testing.assert_close(one.data, other.data, rtol=0, atol=0)
    finally:
        trained.close()
    assert [(row["rollout/calls"], row["rollout/calls_left_out"]) for row in kept.steps] == [(2, GROUP)] * 2


def test_the_fixed_agent_may_be_a_model_of_another_server():
    tokenizer = tiny_tokenizer()
    with tiny_policy(vocabulary=len(tokenizer)) as policy:
        sampler = PolicySampler(policy.engine, base_name="base", adapters=["default"], context_length=512)
        with MiniLLMServer(sampler, tokenizer, model_name="elsewhere") as server:
            upstream = {"model_name": "customer", "base_url": server.endpoint, "model": "default", "token_ids": True}
            proxy = LLMProxy(model_list=[upstream])
            _assert_two_of_three_calls_trained(*_train(WithUser(), {"llm_proxy": proxy}))
            assert not proxy.is_running()


def test_an_upstream_under_the_name_of_a_trained_model_is_refused():
    proxy = LLMProxy(model_list=[{"model_name": "user", "base_url": "http://127.0.0.1:9/v1"}])
    with pytest.raises(UserError, match="'user' is served by the algorithm itself"):
        _train(WithUser(), {"llm_proxy": proxy}, adapters=NAMES)


# Each is trained, with an adapter of its own


def test_two_adapters_on_one_model_learn_different_things(tmp_path):
    trained = algorithm(keep_open=True, max_update_kl=0)  # a tiny model that knows nothing has to move far in six steps
    options = {"store": InMemoryLightningStore(), "output_dir": tmp_path, "val_dataset": TASKS}
    kept = fit(trained, Two(), TASKS, n_runners=32, **options)
    try:
        learnt = {name: sum(f"{name}/loss" in row for row in kept.steps) for name in NAMES}
        assert trained.served.policy.model.versions == learnt
        assert trained.summary["untrained"] == {}
        assert [row["name"] for row in trained.summary["accuracy"]] == ["before", "after RL"]
    finally:
        trained.close()
    for name in NAMES:
        rewards = [row[f"{name}/reward/mean"] for row in kept.steps]
        assert np.mean(rewards[-3:]) > np.mean(rewards[:2]) + 0.2, rewards
        for row in kept.steps:
            assert row[f"{name}/rollout/calls"] == 1
            assert row[f"{name}/rollout/without_calls"] == 0
            assert row.get(f"{name}/mismatch/mean_abs", 0.0) < 1e-4
    assert all("loss" not in row and "grad_norm" not in row for row in kept.steps)
    assert kept.steps[0]["reward/user/mean"] == kept.steps[0]["user/reward/mean"]
    assert not (tmp_path / "adapter").exists()
    assert sorted(path.name for path in (tmp_path / "adapters").iterdir() if path.is_dir()) == sorted(NAMES)


def test_each_adapter_is_trained_on_the_tokens_of_its_own_calls_alone(monkeypatch):
    batches: dict[str, Any] = {}
    step = grpo.take_steps

    def kept_steps(learner, batch, *others):
        batches[learner.adapter] = batch
        return step(learner, batch, *others)

    monkeypatch.setattr(grpo, "take_steps", kept_steps)
    groups: dict[str, Any] = {}
    update = grpo.GRPOObjective.update

    def kept_groups(self, adapter, of_adapter):
        groups[adapter] = of_adapter
        return update(self, adapter, of_adapter)

    monkeypatch.setattr(grpo.GRPOObjective, "update", kept_groups)
    fit(algorithm(total_steps=1, tasks_per_step=1, samples_per_prompt=GROUP), Two(), TASKS[:1])
    for name in NAMES:
        (group,) = groups[name]
        records = [record for trajectory in group.trajectories for record in trajectory.records]
        assert {record.model for record in records} == {name}
        assert len(records) == GROUP  # the same prompt, but no retry of the other's call
        packed = batches[name].packed
        sampled = sorted(record.output_ids.tolist() for record in records)
        terms = [
            packed.tokens_T[packed.token_S[packed.call_S == call]].tolist() for call in set(packed.call_S.tolist())
        ]
        assert all(term in sampled for term in terms)


class Uneven(Two):
    """Calls the user for half of the rollouts, and rewards the user by name alone in one of them."""

    async def rollout_async(self, task, resources, rollout):
        seed = rollout.metadata["sampling_seed"]
        await self.ask(rollout, resources["llm"], task["word"])
        if seed % 2:
            await self.ask(rollout, resources["llm"], task["word"], "user")
            emit_reward({"user": 1.0})
        else:
            emit_reward(float(seed % 3))


def test_rollouts_that_give_an_adapter_nothing_say_why():
    trained = algorithm(total_steps=1, samples_per_prompt=GROUP)
    kept = fit(trained, Uneven(), TASKS)
    (row,) = kept.steps
    without = row["user/rollout/without_calls"]
    assert 0 < without < 4 * GROUP
    assert row["assistant/rollout/without_calls"] == 0
    (reason,) = trained.summary["untrained"]
    assert "no reward for 'assistant'" in reason
    assert trained.summary["untrained"][reason] == 4 * GROUP - without
    assert row["user/groups/with_signal"] == 0
    assert "user/loss" not in row


def test_a_warm_up_teaches_the_adapter_that_it_is_for():
    def demonstration(row):
        return [{"role": "user", "content": row["word"]}, {"role": "assistant", "content": "zz"}]

    settings = WarmStartSettings(examples=4)
    trained = algorithm(total_steps=0, warm_start={"user": WarmStart(demonstration, (), settings)}, keep_open=True)
    kept = fit(trained, Two(), TASKS)
    assert trained.served.policy.model.versions == {"assistant": 0, "user": 1}
    trained.close()
    assert [row for row in kept.rows if "user/sft/loss" in row]
    with pytest.raises(PolicyError, match="warm_start: 'waiter' is not among the adapters assistant, user"):
        algorithm(warm_start={"waiter": WarmStart(demonstration)})


@pytest.mark.filterwarnings("ignore:.*base_model_name_or_path. was renamed:UserWarning")
def test_saved_adapters_are_measured_under_their_names(tmp_path):
    tokenizer = tiny_tokenizer()
    model = load_model(tiny_model(len(tokenizer)), lora=LoraSettings(), adapters=dict.fromkeys(NAMES))
    folders = {name: tmp_path / name for name in NAMES}
    for name, folder in folders.items():
        for matrix in model.trainable(name):
            torch.nn.init.normal_(matrix, std=0.3)
        save_weights(model, folder, name)
    measure = Measure(tiny_model(len(tokenizer)), tokenizer, max_new_tokens=6, load_options={"adapters": folders})
    fit(measure, Two(), None, val_dataset=TASKS)
    for finished in measure.evaluation.rollouts:
        first, second = spans_to_records(finished.spans)
        assert (first.model, second.model) == NAMES
        assert first.prompt_ids.tolist() == second.prompt_ids.tolist()
        assert first.output_ids.tolist() != second.output_ids.tolist()


def test_a_run_of_several_adapters_is_not_resumed_with_others(tmp_path):
    folder = RunFolder(tmp_path)
    fit(algorithm(total_steps=0), Two(), TASKS, output_dir=folder)
    tokenizer = tiny_tokenizer()
    other = MiniGRPO(tiny_model(len(tokenizer)), tokenizer, adapters=("assistant", "guest"), total_steps=0)
    with pytest.raises(UserError, match="is of assistant, user"):
        fit(other, Two(), TASKS, output_dir=folder, resume=True)
