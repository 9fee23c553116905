"""Train an agent that asks a database, written with the package's pieces: agent, reward, imitation, trainer.

    pip install "mini-agentic-rl[recipes]"
    python examples/train_sql_agent.py --steps 8

The database is generated and invented: nothing in it is medical advice. The agent is built on the OpenAI Agents SDK;
its queries run in a process that can only read. Its reward is whether the last query gives what the gold query gives,
here and on a second database with other facts, and a fifth of that for an answer that states the values.
"""

from __future__ import annotations

import argparse
from functools import partial

from mini_agentic_rl import LoggingHook, MiniGRPO, Trainer
from mini_agentic_rl.algorithm import WarmStart, WarmStartSettings
from mini_agentic_rl.policy import LearnerSettings
from mini_agentic_rl.recipes.sql import SqlAgent, SqlReward
from mini_agentic_rl.recipes.sql.data import SQL_TOOLS, MedicalQuestions, demonstration


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="embedded", help="embedded, a folder, or a Hugging Face id")
    parser.add_argument("--difficulty", type=int, nargs="+", default=[1], help="levels of the questions, 1 to 4")
    parser.add_argument("--steps", type=int, default=8, help="reinforcement-learning steps")
    parser.add_argument("--tasks-per-step", type=int, default=8, help="questions drawn in each step")
    parser.add_argument("--samples-per-prompt", type=int, default=8, help="tries at each, compared with each other")
    parser.add_argument("--eval-size", type=int, default=100, help="held-out questions")
    parser.add_argument("--sft-examples", type=int, default=192, help="conversations to imitate first; 0 for none")
    parser.add_argument("--max-new-tokens", type=int, default=96, help="length of one answer of the model")
    parser.add_argument("--output-dir", default=None, help="folder for checkpoints and the adapter")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    agent = SqlAgent(reward=SqlReward(answer_weight=0.2))
    imitation = WarmStart(
        partial(demonstration, prompt=agent.system_prompt), SQL_TOOLS, WarmStartSettings(examples=options.sft_examples)
    )
    algorithm = MiniGRPO(
        options.model,
        total_steps=options.steps,
        tasks_per_step=options.tasks_per_step,
        samples_per_prompt=options.samples_per_prompt,
        max_new_tokens=options.max_new_tokens,
        eval_size=options.eval_size,
        seed=options.seed,
        warm_start=imitation if options.sft_examples else None,
        learner=LearnerSettings(learning_rate=5e-4),
    )
    trainer = Trainer(
        algorithm=algorithm, agent=agent, hooks=[LoggingHook()], n_runners=64, output_dir=options.output_dir
    )
    train = MedicalQuestions("train", 2000, options.seed, difficulty=options.difficulty)
    held_out = MedicalQuestions("test", options.eval_size, 0, difficulty=options.difficulty)
    trainer.fit(train, val_dataset=held_out)
    for row in algorithm.summary["accuracy"]:
        print(f"{row['name']:>10}: {row['correct']} of {row['count']}")


if __name__ == "__main__":
    main()
