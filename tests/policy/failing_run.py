"""Two ranks, one of which fails or dies amid a command: `failing_run.py RANK [dies]`."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np

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
from mini_agentic_rl.tokens import CompletionRecord, TokenTree, pack
from tiny import tiny_model


def failing(inputs: LossInputs) -> LossOutputs:
    if launched().rank == int(sys.argv[1]):
        if "dies" in sys.argv:
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError("this loss fails")
    return LossOutputs(inputs.logprobs_S.sum())


def main() -> None:
    launch = launched()
    options = {"lora": LoraSettings(r=4), "seed": 3, "device": "cpu", "dtype": "float32"}
    if launch.follows:
        follow_rank_0(launch, RankSettings(), {}, tiny_model(), **options)
        return
    policy = RankedPolicy.lead(launch, RankSettings(), {}, tiny_model(), **options)
    tree = TokenTree()
    for index in range(4):
        tree.insert(CompletionRecord(np.arange(4), np.arange(index, index + 6), np.zeros(6, np.float32)), index)
    try:
        policy.learn(lambda: policy.learner(LearnerSettings()).forward_backward(pack([tree]), failing))
    finally:
        policy.close()


if __name__ == "__main__":
    main()
