"""Sampling and learning take turns, or sampling has a share of the time: no gradient and no token is disturbed."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from helpers import group_of_conversations, pack_rollouts, sample_all, tiny_policy
from mini_agentic_rl.policy import (
    EngineSettings,
    LearnerSettings,
    LoraSettings,
    LossInputs,
    LossOutputs,
    QueueFullError,
)
from mini_agentic_rl.policy.load import add_adapter
from mini_agentic_rl.policy.policy import SharedTurns
from mini_agentic_rl.tokens import CompletionRecord, SamplingParams, TokenRequest


def test_while_learning_no_key_is_held_and_sequences_under_way_go_on_as_if_nothing_had_been():
    params = [SamplingParams(max_tokens=40, seed=seed) for seed in range(3)]
    prompts = [[1, 2, 3, 4, 5, seed] for seed in range(3)]
    with tiny_policy() as policy:
        unbroken = sample_all(policy, prompts, params)
        held_before, held_while, started = [], [], threading.Event()
        counters = policy.engine.counters

        def learn_often():
            started.wait(10)
            for _ in range(5):
                before = counters.sampled_tokens
                policy.run(lambda: held_before.append(policy.engine._pool.allocated))
                policy.learn(lambda: held_while.append(policy.engine._pool.allocated))
                while counters.sampled_tokens < before + 5 and policy.engine.pending():
                    pass

        learner = threading.Thread(target=learn_often)
        learner.start()
        started.set()
        broken = sample_all(policy, prompts, params)
        learner.join()
    assert any(held_before)
    assert held_while == [False] * 5
    for one, other in zip(broken, unbroken, strict=True):
        assert one.output_ids.tolist() == other.output_ids.tolist()
        torch.testing.assert_close(torch.tensor(one.logprobs), torch.tensor(other.logprobs), atol=1e-5, rtol=0)


def test_free_pages_go_back_between_sampling_and_learning_and_seldom_from_update_to_update(monkeypatch):
    released = []
    for module in ("policy", "kv_cache"):
        monkeypatch.setattr(
            f"mini_agentic_rl.policy.{module}.release_free_memory", lambda of=module: released.append(of)
        )
    with tiny_policy() as policy:
        for _ in range(2):
            sample_all(policy, [[1, 2, 3]], [SamplingParams(max_tokens=2)])
            for _ in range(20):
                policy.learn(lambda: None)
    assert released == ["kv_cache", "policy", "policy"] * 2


def test_a_request_beyond_those_that_may_wait_is_refused_and_the_others_are_served():
    request = TokenRequest((1, 2), SamplingParams(max_tokens=2))
    with tiny_policy(engine=EngineSettings(block_size=4, cache_mib=1, max_waiting=2)) as policy:
        done = [threading.Event() for _ in range(2)]

        def fill():  # a job, during which nothing is sampled
            for event in done:
                policy.engine.submit(request, lambda delta, event=event: event.set() if delta.finish_reason else None)
            with pytest.raises(QueueFullError, match="max_waiting"):
                policy.engine.submit(request, lambda delta: None)

        policy.run(fill)
        assert all(event.wait(10) for event in done)
        assert sample_all(policy, [[1, 2]], [SamplingParams(max_tokens=2)])[0].output_ids.size == 2


ENGINE = EngineSettings(block_size=4, cache_mib=1, max_batch_tokens=48, max_draft_tokens=0)
CHUNKS = LearnerSettings(learning_rate=0.05, max_batch_tokens=8)


def _packed(policy):
    return pack_rollouts(group_of_conversations(policy, rollouts=2))


def _loss(inputs):
    return LossOutputs(-(inputs.weights_S * inputs.logprobs_S).sum())


class UnderWay:
    """One long request, and what came of it."""

    def __init__(self, policy, tokens):
        self.deltas: list = []
        self.done = threading.Event()
        self.begun = threading.Event()
        self.prompt = tuple(range(40, 60))
        policy.engine.submit(TokenRequest(self.prompt, SamplingParams(max_tokens=tokens, seed=3)), self._on_delta)

    def _on_delta(self, delta):
        self.deltas.append(delta)
        self.begun.set()
        if delta.finish_reason:
            self.done.set()

    @property
    def record(self):
        versions = [delta.version for delta in self.deltas for _ in delta.token_ids]
        return CompletionRecord(
            np.array(self.prompt),
            np.array([token for delta in self.deltas for token in delta.token_ids]),
            np.array([value for delta in self.deltas for value in delta.logprobs], np.float32),
            versions=np.array(versions),
        )


@pytest.mark.parametrize("checkpointing", [False, True])
def test_tokens_are_sampled_and_brief_jobs_run_amid_a_pass_whose_gradient_stays_what_it_is(checkpointing):
    results, sampled, ran_amid = [], [], []
    for share in (0.0, 0.5):
        with tiny_policy(engine=ENGINE, lora=LoraSettings(dropout=0.3)) as policy:
            packed = _packed(policy)
            assert UnderWay(policy, 400).begun.wait(30)

            def brief(policy=policy, packed=packed):
                add_adapter(policy.model, "other", LoraSettings(r=3), seed=1)
                return policy.scorer("other", max_tokens=8, head_rows=8).logprobs(packed).clone()

            def learn(policy=policy, packed=packed, brief=brief):
                torch.manual_seed(0)
                learner = policy.learner(CHUNKS.changed(checkpointing=checkpointing))
                before = policy.engine.counters.sampled_tokens
                jobs = []

                def loss(inputs):
                    if not jobs:
                        jobs.append(policy._thread.submit(lambda: policy._turn(brief), brief=True))
                    return _loss(inputs)

                learner.forward_backward(packed, loss, LossInputs(torch.full((packed.term_count,), 0.1)))
                sampled.append(policy.engine.counters.sampled_tokens - before)
                ran_amid.append(jobs[0].done())
                assert not policy.model.base.training
                return [parameter.grad.clone() for parameter in learner.parameters], jobs[0]

            gradient, job = policy.learn(learn, share)
            results.append([*gradient, job.result(60)])
    assert sampled[0] == 0 < sampled[1]
    assert ran_amid == [False, True]
    for alone, beside in zip(*results, strict=True):
        torch.testing.assert_close(alone, beside, atol=1e-6, rtol=1e-4)


def test_a_request_under_way_goes_on_with_the_new_weights_within_the_job_that_learns():
    with tiny_policy(engine=ENGINE) as policy:
        packed = _packed(policy)
        under_way = UnderWay(policy, 320)
        assert under_way.begun.wait(30)
        learner = policy.run(lambda: policy.learner(CHUNKS))

        def learn():
            for _ in range(2):
                learner.forward_backward(packed, _loss, LossInputs(torch.full((packed.term_count,), 0.1)))
                learner.optim_step()

        policy.learn(learn, 0.7)
        assert under_way.done.wait(60)
        record = under_way.record
        assert record.versions[0] == 0
        assert 1 in record.versions, "between the two steps of the job"
        of_pack = pack_rollouts([[record]])
        scorer = policy.scorer("default", max_tokens=400, head_rows=64)
        learned = policy.run(lambda: scorer.logprobs(of_pack)).numpy()
    newest = record.versions == 2
    assert (of_pack.version_S == record.versions).all()
    assert newest.any()
    assert np.abs(learned - record.logprobs)[newest].max() < 1e-4
    assert np.abs(learned - record.logprobs)[~newest].max() > 1e-3


class FakeEngine:
    """Steps that take a second each."""

    def __init__(self, clock):
        self.clock, self.left, self.steps = clock, 0, 0

    def pending(self):
        return self.left > 0

    def step(self):
        self.left -= 1
        self.steps += 1
        self.clock[0] += 1.0


@pytest.mark.parametrize(("share", "steps"), [(0.5, 40), (0.2, 10), (0.8, 160)])
def test_sampling_gets_its_share_and_makes_up_for_no_turn_that_it_did_not_want(share, steps):
    clock = [0.0]
    engine = FakeEngine(clock)
    with tiny_policy(engine=ENGINE) as policy:
        model = policy.model
        turns = SharedTurns(model, engine, lambda: None, clock=lambda: clock[0])

        def job():
            with turns.shared(share):
                for _ in range(100):  # nothing to sample
                    clock[0] += 1.0
                    model.pause()
                engine.left = 10**6
                for _ in range(40):
                    clock[0] += 1.0
                    model.pause()
            assert model.on_pause is None

        policy.run(job)
    assert engine.steps == pytest.approx(steps, abs=2)
