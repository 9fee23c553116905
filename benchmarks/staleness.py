"""Rollouts an hour of agents that wait for a tool: sampling ahead of learning against taking turns.

    python benchmarks/staleness.py                       # about 10 minutes
    python benchmarks/staleness.py --seeds 0 --steps 6   # a look

A tiny random model, trained whole, learns to answer with the letter a. Its agent asks, waits for a tool, and asks
again. Both sides have the same runners, steps and rollouts; only `max_staleness` differs. Of each side: rollouts an
hour of the training (measurements left out), and the accuracy on held-out tasks after it.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

import torch
from openai import AsyncOpenAI
from rich.console import Console
from rich.table import Table
from transformers import LlamaConfig, LlamaForCausalLM

from mini_agentic_rl import LitAgent, MiniGRPO, Trainer
from mini_agentic_rl.metrics import MetricsLogger
from mini_agentic_rl.policy import LearnerSettings
from mini_agentic_rl.trainer import wilson_interval
from output import deliver, make_parser, tell
from random_model import byte_tokenizer

TRAINED, HELD_OUT = 64, 32
TASKS, SAMPLES = 2, 4
"""Of a step."""
WORDS = [f"{first}{second}{third}" for first in "bcdfghjk" for second in "eiou" for third in "lmn"]


class WaitingAgent(LitAgent[dict[str, str]]):
    """Asks for letters, waits for its tool, asks again; one letter a in its answers earns half, two earn all."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds
        self._clients: dict[asyncio.AbstractEventLoop, AsyncOpenAI] = {}

    async def rollout_async(self, task: dict[str, str], resources: Any, rollout: Any) -> float:
        llm = resources["llm"]
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            self._clients[loop] = AsyncOpenAI(api_key="none", base_url="http://unused")
        client = self._clients[loop].with_options(
            base_url=llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
        )
        messages: list[Any] = [{"role": "user", "content": task["word"]}]
        said, answer = "", ""
        for turn in range(2):
            if turn:
                await asyncio.sleep(self._seconds)
                messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "again"}]
            reply = await client.chat.completions.create(model=llm.model, messages=messages, **llm.sampling_parameters)
            answer = reply.choices[0].message.content or ""
            said += answer
        return min(1.0, said.count("a") / 2)


class Steps(MetricsLogger):
    """Keeps what each step logs."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def log(self, metrics: Any, *, step: int) -> None:
        if "seconds/learning" in metrics:
            self.rows.append(dict(metrics))


def random_model(seed: int) -> LlamaForCausalLM:
    """Return a model that knows nothing, small enough to be trained whole within a minute."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(byte_tokenizer()),
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=512,
        initializer_range=0.08,
    )
    return LlamaForCausalLM(config).float()


def run(agent: WaitingAgent, staleness: int, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Train once; return rollouts an hour, accuracy and ages."""
    tell(f"max_staleness={staleness}, seed {seed}")
    steps = Steps()
    algorithm = MiniGRPO(
        random_model(seed),
        byte_tokenizer(),
        lora=None,
        learner=LearnerSettings(learning_rate=3e-3, schedule="constant"),
        total_steps=arguments.steps,
        tasks_per_step=TASKS,
        samples_per_prompt=SAMPLES,
        max_new_tokens=6,
        eval_size=HELD_OUT,
        max_staleness=staleness,
        seed=seed,
    )
    tasks = [{"word": word} for word in WORDS]
    trainer = Trainer(algorithm=algorithm, n_runners=arguments.runners, logger=steps)
    trainer.fit(agent, tasks[:TRAINED], val_dataset=tasks[TRAINED : TRAINED + HELD_OUT])
    # All steps, the first of which fills the queue on the side that samples ahead; measurements are not among them.
    seconds = sum(row["seconds/sampling"] + row["seconds/learning"] for row in steps.rows)
    first, last = algorithm.summary["accuracy"]
    return {
        "max_staleness": staleness,
        "seed": seed,
        "seconds_per_step": seconds / len(steps.rows),
        "rollouts_per_hour": 3600 * len(steps.rows) * TASKS * SAMPLES / seconds,
        "before": first["correct"],
        "correct": last["correct"],
        "count": last["count"],
        "age": sum(row.get("staleness/mean", 0.0) for row in steps.rows) / len(steps.rows),
        "oldest": max(row.get("staleness/max", 0.0) for row in steps.rows),
        "too_old": sum(row.get("staleness/too_old", 0.0) for row in steps.rows),
    }


def report(console: Console, found: dict[str, Any]) -> None:
    """Print the result as a table."""
    shown = Table("max_staleness", "rollouts / hour", "s / step", "accuracy", "mean age", "oldest", "too old")
    for side in found["sides"]:
        low, high = side["interval"]
        accuracy = f"{side['accuracy']:.1%} ({low:.1%} to {high:.1%} of {side['count']})"
        numbers = (f"{side['rollouts_per_hour']:,.0f}", f"{side['seconds_per_step']:.2f}", accuracy)
        ages = (f"{side['age']:.2f}", f"{side['oldest']:.0f}", f"{side['too_old']:.0f}")
        shown.add_row(str(side["max_staleness"]), *numbers, *ages)
    shown.add_row("ratio", f"{found['ratio']:.2f}", *[""] * 5)
    console.print(shown)


def main() -> None:
    """Run both sides in turns, seed by seed."""
    parser = make_parser(__doc__)
    parser.add_argument("--staleness", type=int, default=2, help="of the side that samples ahead")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="each is a run of both sides")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--wait", type=float, default=2.0, help="seconds that the agent's tool takes")
    parser.add_argument("--runners", type=int, default=24, help="agents that run at once, on either side")
    arguments = parser.parse_args()
    agent = WaitingAgent(arguments.wait)
    runs = [
        run(agent, staleness, seed, arguments) for seed in arguments.seeds for staleness in (0, arguments.staleness)
    ]
    sides = []
    for staleness in (0, arguments.staleness):
        own = [one for one in runs if one["max_staleness"] == staleness]
        correct, count = sum(one["correct"] for one in own), sum(one["count"] for one in own)
        mean = {
            name: sum(one[name] for one in own) / len(own) for name in ("seconds_per_step", "rollouts_per_hour", "age")
        }
        sides.append(
            mean
            | {
                "max_staleness": staleness,
                "accuracy": correct / count,
                "count": count,
                "interval": wilson_interval(correct, count),
                "oldest": max(one["oldest"] for one in own),
                "too_old": sum(one["too_old"] for one in own),
            }
        )
    found = {"runs": runs, "sides": sides, "ratio": sides[1]["rollouts_per_hour"] / sides[0]["rollouts_per_hour"]}
    deliver(arguments, found, report)


if __name__ == "__main__":
    main()
