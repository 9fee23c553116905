"""Train an assistant with tools on your copy of GAIA.

    python examples/train_gaia_agent.py --data-dir GAIA --levels 1 --steps 15

The data set is gated: accept its terms on the Hugging Face Hub (gaia-benchmark/GAIA) and download it; --data-dir is
that folder. Only its validation questions have answers; they are divided into train and test by their hash.

The agent has a calculator and reads the question's file if it is text (CSV, JSON, code, …). It cannot search the web.
If you have a function that can, from a query to text, plug it in: --search my_module:search.
"""

from __future__ import annotations

import argparse
from importlib import import_module

from mini_agentic_rl import LoggingHook, MiniGRPO, Trainer
from mini_agentic_rl.policy import LearnerSettings
from mini_agentic_rl.recipes.gaia import LEVELS, FunctionTool, GaiaAgent, load_gaia, web_search_tool


def search_tools(path: str | None) -> list[FunctionTool]:
    """The search tool that `module:function` names; none without it."""
    if path is None:
        return []
    module, _, name = path.partition(":")
    return [web_search_tool(getattr(import_module(module), name))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", required=True, help="your copy of the data set")
    parser.add_argument("--model", default="embedded", help="embedded, a folder, or a Hugging Face id")
    parser.add_argument("--levels", type=int, nargs="+", default=list(LEVELS), choices=LEVELS)
    parser.add_argument("--search", default=None, metavar="MODULE:FUNCTION", help="a web search of your own")
    parser.add_argument("--steps", type=int, default=15, help="reinforcement-learning steps")
    parser.add_argument("--tasks-per-step", type=int, default=8, help="questions drawn in each step")
    parser.add_argument("--samples-per-prompt", type=int, default=8, help="tries at each, compared with each other")
    parser.add_argument("--eval-size", type=int, default=None, help="test questions that measure it; all by default")
    parser.add_argument("--max-turns", type=int, default=12, help="model calls of a try")
    parser.add_argument("--max-new-tokens", type=int, default=512, help="length of one answer of the model")
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--output-dir", default=None, help="folder for checkpoints and the adapter")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    algorithm = MiniGRPO(
        options.model,
        total_steps=options.steps,
        tasks_per_step=options.tasks_per_step,
        samples_per_prompt=options.samples_per_prompt,
        max_new_tokens=options.max_new_tokens,
        eval_size=options.eval_size,
        seed=options.seed,
        learner=LearnerSettings(learning_rate=options.learning_rate),
    )
    trainer = Trainer(
        algorithm=algorithm,
        agent=GaiaAgent(tools=search_tools(options.search), max_turns=options.max_turns),
        hooks=[LoggingHook()],
        n_runners=64,
        output_dir=options.output_dir,
    )
    train, test = (load_gaia(options.data_dir, split, levels=options.levels) for split in ("train", "test"))
    trainer.fit(train, val_dataset=test)
    for row in algorithm.summary["accuracy"]:
        print(f"{row['name']:>10}: {row['correct']} of {row['count']}")


if __name__ == "__main__":
    main()
