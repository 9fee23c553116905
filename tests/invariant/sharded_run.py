"""Learning on one rank, or on several that hold a part of the base each.

`sharded_run.py FOLDER URL` learns from given trees in FOLDER/learn, and trains an agent in FOLDER/train, whose rollouts
the server at that address samples. With `--resume` it continues the training in FOLDER.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "algorithm"))

import numpy as np
import torch
from letters import TASKS, AnyReward, Letters

from mini_agentic_rl import MiniGRPO, Trainer
from mini_agentic_rl.policy import (
    LearnerSettings,
    LoraSettings,
    LossInputs,
    LossOutputs,
    Policy,
    RankedPolicy,
    RankSettings,
    follow_rank_0,
    launched,
)
from mini_agentic_rl.samplers import SamplerSettings
from mini_agentic_rl.tokens import CompletionRecord, PackedTrees, TokenTree, pack
from tiny import tiny_model, tiny_tokenizer

LORA = LoraSettings(r=4, alpha=8)
SHARD = RankSettings(shard=True)


def clipped(inputs: LossInputs) -> LossOutputs:
    """A clipped objective, with a divergence from the reference."""
    ratio = torch.exp(inputs.logprobs_S - inputs.behaviour_logprobs_S)
    gain = torch.minimum(ratio * inputs.advantages_S, ratio.clamp(0.8, 1.2) * inputs.advantages_S)
    apart = inputs.reference_logprobs_S - inputs.logprobs_S
    return LossOutputs((inputs.weights_S * (apart.exp() - apart - 1 - gain)).sum())


def trees(seed: int, rollouts: int) -> PackedTrees:
    """Return two trees whose rollouts branch off a prompt, and off each other, at different depths."""
    draw = np.random.default_rng(seed)
    grown = []
    for _ in range(2 if rollouts > 1 else 1):
        tree, prompt = TokenTree(), draw.integers(0, 300, 20)
        for index in range(rollouts):
            said = draw.integers(0, 300, int(draw.integers(3, 25)))
            logprobs = np.full(said.size, -5.0, np.float32)
            tree.insert(CompletionRecord(prompt, said, logprobs), index)
            if index % 2:
                prompt = np.concatenate([prompt, said[: said.size // 2]])
        grown.append(tree)
    return pack(grown)


def learn(folder: Path) -> None:
    """Take four steps on given trees; the last is of one rollout, of which only one rank has a share."""
    folder.mkdir(parents=True, exist_ok=True)
    options = {"lora": LORA, "seed": 3, "device": "cpu", "dtype": "float32"}
    launch = launched()
    if launch is not None and launch.follows:
        follow_rank_0(launch, SHARD, {}, tiny_model(layers=3), **options)
        return
    make = Policy.load if launch is None else lambda *a, **k: RankedPolicy.lead(launch, SHARD, {}, *a, **k)
    policy = make(tiny_model(layers=3), **options)
    scored: list[list[float]] = []
    learners = []

    def step(number: int) -> None:
        packed = trees(number, 1 if number == 3 else 5)
        settings = LearnerSettings(learning_rate=1e-3, max_batch_tokens=24, checkpointing=number == 2)
        if not learners or number == 2:
            learners.append(policy.learner(settings))
        learner = learners[-1]
        reference_S = learner.logprobs(packed, reference=True)
        scored.append(policy.scorer(None, max_tokens=24, head_rows=8).logprobs(packed).tolist())
        torch.manual_seed(number)
        inputs = LossInputs(
            torch.full((packed.term_count,), 1 / packed.term_count),
            advantages_S=torch.randn(packed.term_count),
            reference_logprobs_S=reference_S,
        )
        learner.forward_backward(packed, clipped, inputs, gradient=False)
        learner.forward_backward(packed, clipped, inputs)
        learner.optim_step()

    for number in range(4):
        policy.learn(lambda number=number: step(number))
    policy.run(policy.check_agreement)
    policy.save(folder / "adapter")
    held = sum((p.to_local() if hasattr(p, "to_local") else p).numel() for p in policy.model.base.parameters())
    (folder / "told.json").write_text(json.dumps({"scored": scored, "held": held}))
    policy.close()


def train(folder: Path, url: str, *, resume: bool) -> None:
    """Train an agent for two steps."""
    tokenizer = tiny_tokenizer()
    trained = MiniGRPO(
        tiny_model(len(tokenizer)),
        tokenizer,
        lora=LORA,
        learner=LearnerSettings(learning_rate=1e-3, max_batch_tokens=64),
        sampler=SamplerSettings(sampler="vllm", sampler_url=[url], sampler_folder=folder / "weights"),
        ranks=RankSettings() if launched() is None else SHARD,
        total_steps=2,
        tasks_per_step=3,
        samples_per_prompt=4,
        max_new_tokens=8,
        eval_size=4,
        checkpoint_every=1,
        kl_coef=0.05,
        importance_correction="token",
    )
    Trainer(
        algorithm=trained,
        hooks=[AnyReward()],
        n_runners=6,
        output_dir=folder,
        resume=resume,
    ).fit(Letters(), TASKS)


if __name__ == "__main__":
    import sharded_run  # what is sent to another rank is found by this name there

    where, server_url = Path(sys.argv[1]), sys.argv[2]
    if "--resume" in sys.argv:
        sharded_run.train(where, server_url, resume=True)
    else:
        sharded_run.learn(where / "learn")
        sharded_run.train(where / "train", server_url, resume=False)
