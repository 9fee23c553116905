"""A short deterministic training of a tiny model, to be started on any number of ranks.

`ranked_run.py FOLDER ALGORITHM [--resume] [--steps N]`. `--end-after STEP` has it told to end then, `--kill-after STEP`
kills it.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "algorithm"))

from letters import TASKS, AnyReward, Letters

from mini_agentic_rl import MiniGRPO, MiniPPO, Trainer
from mini_agentic_rl.metrics import MetricsLogger
from mini_agentic_rl.policy import LearnerSettings, LoraSettings, launched
from tiny import tiny_model, tiny_tokenizer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("algorithm", choices=["grpo", "ppo"])
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--end-after", type=int)
    parser.add_argument("--kill-after", type=int)
    options = parser.parse_args()
    tokenizer = tiny_tokenizer()
    launch = launched()

    class Watching(MetricsLogger):
        """Interrupts this process, or says that a step was taken."""

        def log(self, metrics, *, step):
            print(f"step {step}", file=sys.stderr, flush=True)
            if step == options.end_after:
                os.kill(os.getpid(), signal.SIGTERM)
            if step == options.kill_after and (launch is None or launch.restarts == 0):
                os.kill(os.getpid(), signal.SIGKILL)

    settings = {
        "total_steps": options.steps or (2 if options.algorithm == "grpo" else 3),  # PPO's first step is the critic's
        "tasks_per_step": 3,
        "samples_per_prompt": 4,
        "max_new_tokens": 8,
        "max_update_kl": 1e-3,  # so that steps are shortened
        "eval_size": 4,
        "checkpoint_every": 1,
        "deterministic": True,
    }
    if options.algorithm == "grpo":
        kind, more = MiniGRPO, {"kl_coef": 0.05, "importance_correction": "token", "epochs_per_batch": 2}
    else:
        kind, more = MiniPPO, {"kl_coef": 0.05, "minibatches": 2, "value_trains_adapter": True}
    trained = kind(
        tiny_model(len(tokenizer)),
        tokenizer,
        lora=LoraSettings(r=4),
        learner=LearnerSettings(learning_rate=1e-3, max_batch_tokens=64),
        **settings,
        **more,
    )
    Trainer(
        algorithm=trained,
        hooks=[AnyReward()],
        n_runners=6,
        output_dir=options.folder,
        logger=Watching(),
        resume=options.resume,
    ).fit(Letters(), TASKS)


if __name__ == "__main__":
    main()
