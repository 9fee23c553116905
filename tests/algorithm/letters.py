"""A task that a random tiny model can learn: answer with many of one letter. Run as a script it is a whole training."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
from openai import AsyncOpenAI

from mini_agentic_rl import Hook, LitAgent, MiniGRPO, MiniPPO, Trainer
from mini_agentic_rl.metrics import MetricsLogger
from mini_agentic_rl.policy import LearnerSettings
from tiny import tiny_model, tiny_tokenizer

TASKS = [{"word": word} for word in ("hi", "go", "yo", "me", "we", "us", "it", "so")]


class Kept(MetricsLogger):
    """Keeps what a run logs."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []
        self.notes: list[str] = []

    def log(self, metrics, *, step):
        self.rows.append(dict(metrics))

    def note(self, message):
        self.notes.append(message)

    @property
    def steps(self) -> list[dict[str, float]]:
        """The rows of the steps of reinforcement learning."""
        return [row for row in self.rows if "rollout/dropped" in row]


class Asking(LitAgent):
    """Asks models at the URL of its rollout."""

    _client: AsyncOpenAI | None = None

    async def ask(self, rollout, llm, messages, model=None, **sampling) -> str:
        """Return the reply to messages, or to one text."""
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        if self._client is None:
            self._client = AsyncOpenAI(api_key="none", base_url="http://unused")
        client = self._client.with_options(base_url=llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id))
        options = sampling or llm.sampling_parameters
        reply = await client.chat.completions.create(model=model or llm.model, messages=messages, **options)
        return reply.choices[0].message.content or ""


class Letters(Asking):
    """Asks the model one thing."""

    async def rollout_async(self, task, resources, rollout):
        rollout.metadata["reply"] = await self.ask(rollout, resources["llm"], task["word"])


class CountLetters(Hook):
    """One letter a earns half, two or more the whole reward."""

    async def on_rollout_end(self, *, rollout):
        return min(1.0, rollout.metadata["reply"].count("a") / 2)


class AnyReward(Hook):
    """Rewards that differ from rollout to rollout, whatever a random model says."""

    async def on_rollout_end(self, *, rollout):
        return sum(map(ord, rollout.metadata["reply"])) % 7 / 7


def algorithm(**overrides) -> MiniGRPO:
    """Full training, because a random model has nothing that an adapter could bend."""
    tokenizer = tiny_tokenizer()
    options = {
        "total_steps": 20,
        "tasks_per_step": 4,
        "samples_per_prompt": 8,
        "max_new_tokens": 6,
        "eval_size": 8,
        "lora": None,
        # A rate that falls depends on the number of steps, and some runs are resumed with more.
        "learner": LearnerSettings(learning_rate=3e-3, schedule="constant"),
    }
    return MiniGRPO(tiny_model(len(tokenizer)), tokenizer, **{**options, **overrides})


def ppo_algorithm(**overrides) -> MiniPPO:
    """The same with a critic."""
    tokenizer = tiny_tokenizer()
    options = {
        "max_new_tokens": 6,
        "eval_size": 8,
        "lora": None,
        "learner": LearnerSettings(learning_rate=3e-3, schedule="constant"),
    }
    return MiniPPO(tiny_model(len(tokenizer)), tokenizer, **{**options, **overrides})


def fit(trained, agent, tasks=TASKS, hooks=(), *, n_runners=4, logger=None, val_dataset=None, **options) -> Kept:
    """Train an agent with a trainer of these options; return what the run logged."""
    kept = logger or Kept()
    trainer = Trainer(algorithm=trained, hooks=hooks, n_runners=n_runners, logger=kept, **options)
    trainer.fit(agent, tasks, val_dataset=val_dataset)
    return kept


def weights_digest(folder: Path) -> str:
    """What the trained weights are, in one word."""
    from safetensors.torch import load_file

    digest = hashlib.sha256()
    for name, tensor in sorted(load_file(folder / "adapter" / "model.safetensors").items()):
        digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()


def run_script(trained: MiniGRPO, agent: LitAgent, tasks: list, digest: Callable[[Path], object], hooks=()) -> None:
    """`SCRIPT FOLDER [--resume] [--die-after STEP]`: a run that can end itself; print its steps and weights."""
    folder = Path(sys.argv[1])
    die_after = int(sys.argv[sys.argv.index("--die-after") + 1]) if "--die-after" in sys.argv else None
    run(trained, agent, tasks, folder, hooks, resume="--resume" in sys.argv, die_after=die_after)
    sys.stdout.write(json.dumps({"weights": digest(folder), "steps": trained.summary["steps"]}))


def run(
    trained: MiniGRPO,
    agent: LitAgent,
    tasks: list,
    folder: Path,
    hooks=(),
    *,
    resume: bool = False,
    die_after: int | None = None,
) -> None:
    """Train with one thread; `die_after` ends the process at once after that step."""
    torch.set_num_threads(1)

    class Fatal(MetricsLogger):
        """Kills the process, as a power cut would, right after a step was logged."""

        def log(self, metrics, *, step):
            if die_after is not None and step == die_after:
                os.kill(os.getpid(), 9)

    Trainer(algorithm=trained, hooks=hooks, n_runners=8, output_dir=folder, logger=Fatal(), resume=resume).fit(
        agent, tasks
    )


RESUMABLE = {
    "total_steps": 4,
    "tasks_per_step": 2,
    "samples_per_prompt": 4,
    "checkpoint_every": 2,
    "deterministic": True,
}

if __name__ == "__main__":
    run_script(algorithm(**RESUMABLE), Letters(), TASKS, weights_digest, [CountLetters()])
