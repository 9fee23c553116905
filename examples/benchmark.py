"""Measure a model or an adapter on held-out tasks. Nothing is trained.

python examples/benchmark.py --adapter outputs/math-agent/adapter
"""

from __future__ import annotations

import argparse

from mini_agentic_rl import Trainer
from mini_agentic_rl.algorithm import Measure
from mini_agentic_rl.datasets import ArithmeticDataset, load_task_dataset
from mini_agentic_rl.recipes.math import MathAgent, MathRewardHook
from mini_agentic_rl.trainer.statistics import pass_at_k, wilson_interval


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="embedded", help="embedded, a folder, or a Hugging Face id")
    parser.add_argument("--adapter", default=None, help="folder of a trained adapter")
    parser.add_argument("--dataset", default="arithmetic", help="arithmetic, gsm_symbolic, gsm8k, or a JSONL file")
    parser.add_argument("--size", type=int, default=200, help="how many problems")
    parser.add_argument("--samples", type=int, default=1, help="tries at each problem, for pass@k")
    options = parser.parse_args()

    if options.dataset == "arithmetic":
        tasks = ArithmeticDataset("test", options.size, 0, difficulty=(1, 2))
    else:
        split = "all" if options.dataset.endswith(".jsonl") else "test"
        tasks = load_task_dataset(options.dataset, split, options.size)
    measure = Measure(
        options.model,
        samples=options.samples,
        temperature=0.0 if options.samples == 1 else 1.0,
        max_new_tokens=64,
        load_options={"adapter": options.adapter},
    )
    trainer = Trainer(algorithm=measure, agent=MathAgent(), hooks=[MathRewardHook()], n_runners=128)
    trainer.fit(trainer.agent, None, val_dataset=tasks)

    found = measure.evaluation
    correct, count = sum(found.correct), len(found.rollouts)
    low, high = wilson_interval(correct, count)
    interval = f"95 % interval {100 * low:.1f} to {100 * high:.1f} %"
    print(f"pass@1: {100 * correct / count:.1f} % ({correct} of {count}; {interval})")
    if options.samples > 1:
        solved = [pass_at_k(options.samples, number, options.samples) for number in found.correct]
        print(f"pass@{options.samples}: {100 * sum(solved) / len(solved):.1f} %")


if __name__ == "__main__":
    main()
