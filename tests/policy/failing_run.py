"""Two ranks, one of which fails, dies or halts: `failing_run.py RANK raises|dies|halts`."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np
import torch

from helpers import pack_rollouts
from mini_agentic_rl.policy import (
    LearnerSettings,
    LoraSettings,
    LossInputs,
    LossOutputs,
    RankedPolicy,
    RankSettings,
    follow_rank_0,
    launched,
)
from mini_agentic_rl.policy.ranks.rendezvous import Channel, RankLostError, join_group, meet
from mini_agentic_rl.tokens import CompletionRecord
from tiny import tiny_model

FAILING, HOW = int(sys.argv[1]), sys.argv[2]


def fail_in_loss(inputs: LossInputs) -> LossOutputs:
    if launched().rank == FAILING:
        if HOW == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError("this loss fails")
    return LossOutputs(inputs.logprobs_S.sum())


def learn() -> None:
    """Learn with a loss that fails on one rank."""
    launch = launched()
    options = {"lora": LoraSettings(r=4), "seed": 3, "device": "cpu", "dtype": "float32"}
    if launch.follows:
        follow_rank_0(launch, RankSettings(), {}, tiny_model(), **options)
        return
    policy = RankedPolicy.lead(launch, RankSettings(), {}, tiny_model(), **options)
    packed = pack_rollouts(
        [[CompletionRecord(np.arange(4), np.arange(index, index + 6), np.zeros(6, np.float32))] for index in range(4)]
    )
    try:
        policy.learn(lambda: policy.learner(LearnerSettings()).forward_backward(packed, fail_in_loss))
    finally:
        policy.close()


def halt() -> None:
    """Connect, halt on one rank, and print the error of the other one."""
    launch, settings = launched(), RankSettings(rank_timeout=1.5)
    join_group(launch, meet(launch, settings, {}), settings, torch.device("cpu"))
    channel = Channel(1 - launch.rank, settings.rank_timeout)
    if launch.rank == FAILING:
        os.kill(os.getpid(), signal.SIGSTOP)
    try:
        list(channel.messages())
    except RankLostError as error:
        print(error, flush=True)
    os._exit(0)


if __name__ == "__main__":
    halt() if HOW == "halts" else learn()
