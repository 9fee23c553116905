"""Short deterministic trainings of a tiny model, to be started on any number of ranks.

`ranked_run.py FOLDER ALGORITHM ... [--resume] [--steps N]` trains with each algorithm in a folder of its name.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "algorithm"))

from letters import TASKS, AnyReward, Letters

from mini_agentic_rl import MiniGRPO, MiniPPO, Trainer
from mini_agentic_rl.metrics import MetricsLogger
from mini_agentic_rl.policy import LearnerSettings, LoraSettings
from tiny import tiny_model, tiny_tokenizer


class Watching(MetricsLogger):
    """Prints that a step was taken."""

    def log(self, metrics, *, step):
        print(f"step {step}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("algorithms", nargs="+", choices=["grpo", "ppo"])
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--steps", type=int)
    options = parser.parse_args()
    for algorithm in options.algorithms:
        train(options.folder / algorithm, algorithm, options.steps, resume=options.resume)


def train(folder: Path, algorithm: str, steps: int | None, *, resume: bool) -> None:
    """Train for so many steps, by default as many as update the policy twice."""
    tokenizer = tiny_tokenizer()
    settings = {
        "total_steps": steps or (2 if algorithm == "grpo" else 3),  # PPO's first step is the critic's
        "tasks_per_step": 2,
        "samples_per_prompt": 4,
        "max_new_tokens": 8,
        "max_update_kl": 1e-3,  # so that steps are shortened
        "eval_size": 2,
        "checkpoint_every": 1,
        "deterministic": True,
    }
    if algorithm == "grpo":
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
        output_dir=folder,
        logger=Watching(),
        resume=resume,
    ).fit(Letters(), TASKS)


if __name__ == "__main__":
    main()
