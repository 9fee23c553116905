"""Train an agent of your own to use a calculator: an agent, a reward, an algorithm, a trainer.

    python examples/train_math_agent.py --output-dir outputs/my-agent
    python examples/benchmark.py --adapter outputs/my-agent/adapter

It trains for 50 iterations; 15 (`--iterations 15`) are enough to see it learn. With `--cot` the model is shown to write
what it thinks before it calls the calculator (chain of thought), which takes longer answers.

The agent is ordinary OpenAI-SDK code. Its only tie to the trainer is the `base_url` that it gets for each rollout.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from openai import AsyncOpenAI

from mini_agentic_rl import Hook, LitAgent, LoggingHook, MiniGRPO, Trainer
from mini_agentic_rl.algorithm import WarmStart, WarmStartSettings
from mini_agentic_rl.datasets import ArithmeticDataset
from mini_agentic_rl.policy import LearnerSettings
from mini_agentic_rl.recipes.math import SYSTEM_PROMPT, demonstration
from mini_agentic_rl.rewards import is_correct
from mini_agentic_rl.tools import CALCULATOR_TOOL, calculate


class MathAgent(LitAgent):
    """Asks the model, runs the calculator as often as the model calls it, and stops at an answer."""

    async def rollout_async(self, task, resources, rollout):
        llm = resources["llm"]
        base_url = llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
        messages: list[Any] = [
            {"role": "system", "content": SYSTEM_PROMPT},
            {"role": "user", "content": task["question"]},
        ]
        async with AsyncOpenAI(base_url=base_url, api_key=llm.api_key or "none") as client:
            for _ in range(4):
                completion = await client.chat.completions.create(
                    model=llm.model, messages=messages, tools=[CALCULATOR_TOOL], **llm.sampling_parameters
                )
                reply = completion.choices[0].message
                messages.append(reply.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True))
                if not reply.tool_calls:
                    break
                for call in reply.tool_calls:
                    expression = json.loads(call.function.arguments).get("expression", "")
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": calculate(str(expression))})
        rollout.metadata["answer"] = messages[-1].get("content") or ""


class Correct(Hook):
    """The number that a hook returns is the rollout's reward."""

    def on_rollout_end(self, rollout, task):
        return float(is_correct(rollout.metadata.get("answer", ""), task["answer"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="embedded", help="embedded, a folder, or a Hugging Face id")
    parser.add_argument(
        "--iterations", "--steps", dest="steps", type=int, default=50, help="reinforcement-learning steps"
    )
    parser.add_argument("--tasks-per-step", type=int, default=8, help="tasks drawn in each step")
    parser.add_argument("--eval-size", type=int, default=200, help="held-out problems")
    parser.add_argument("--sft-examples", type=int, default=32, help="conversations to imitate first")
    parser.add_argument("--cot", action="store_true", help="imitate examples that think before they call the tool")
    parser.add_argument("--output-dir", default=None, help="folder for checkpoints and the adapter")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    warm_start = WarmStart(
        lambda row: demonstration(row, think=options.cot),
        [CALCULATOR_TOOL],
        WarmStartSettings(examples=options.sft_examples),
    )
    algorithm = MiniGRPO(
        options.model,
        total_steps=options.steps,
        tasks_per_step=options.tasks_per_step,
        max_new_tokens=128 if options.cot else 64,
        eval_size=options.eval_size,
        seed=options.seed,
        warm_start=warm_start if options.sft_examples else None,
        learner=LearnerSettings(learning_rate=5e-4),
    )
    trainer = Trainer(
        algorithm=algorithm,
        agent=MathAgent(),
        hooks=[Correct(), LoggingHook()],
        n_runners=128,
        output_dir=options.output_dir,
    )
    train = ArithmeticDataset("train", 10_000, options.seed, difficulty=(1, 2))
    held_out = ArithmeticDataset("test", options.eval_size, 0, difficulty=(1, 2))
    trainer.fit(train, val_dataset=held_out)
    for row in algorithm.summary["accuracy"]:
        print(f"{row['name']:>10}: {row['correct']} of {row['count']}")


if __name__ == "__main__":
    main()
