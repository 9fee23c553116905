"""Two agents that answer the same question, each by the adapter of its name. Run as a script it is a whole training."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from letters import RESUMABLE, Asking, run_script
from transformers import PreTrainedModel

from mini_agentic_rl import MiniGRPO
from mini_agentic_rl.emitter import emit_reward
from mini_agentic_rl.policy import LearnerSettings, LoraSettings
from tiny import tiny_model, tiny_tokenizer

TASKS = [{"word": word} for word in ("hi", "go", "yo", "me")]
NAMES = ("assistant", "user")


def share(text: str, letters: str) -> float:
    """Of the characters of `text`, how many are among `letters`."""
    return sum(letter in letters for letter in text) / max(1, len(text))


class Two(Asking):
    """Asks both models the very same thing at one URL; the assistant is for small letters, the user for large ones."""

    async def rollout_async(self, task, resources, rollout):
        llm = resources["main_llm"]
        said = {}
        for name in NAMES:
            assert resources[name].model == name
            assert resources[name].endpoint == llm.endpoint
            said[name] = await self.ask(rollout, llm, task["word"], name)
        rollout.metadata["said"] = said
        emit_reward(
            {
                "assistant": share(said["assistant"], "abcdefghijklmnopqrstuvwxyz"),
                "user": share(said["user"], "ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
            },
            primary_key="assistant",
            final=True,
        )


def base_model() -> PreTrainedModel:
    """A random head tells tokens apart so little that no adapter below it could change much: it is scaled."""
    model = tiny_model(len(tiny_tokenizer()))
    model.lm_head.weight.data.mul_(4)
    return model


def algorithm(**overrides: Any) -> MiniGRPO:
    """Training of both adapters."""
    options = {"total_steps": 6, "tasks_per_step": 4, "samples_per_prompt": 8, "max_new_tokens": 6}
    return MiniGRPO(
        base_model(),
        tiny_tokenizer(),
        adapters=NAMES,
        lora=LoraSettings(r=16, alpha=64),
        learner=LearnerSettings(learning_rate=3e-3),
        **{**options, **overrides},
    )


def weights_digests(folder: Path) -> dict[str, str]:
    """What the trained weights of each adapter are, in one word."""
    return {
        name: hashlib.sha256((folder / "adapters" / name / "adapter_model.safetensors").read_bytes()).hexdigest()
        for name in NAMES
    }


if __name__ == "__main__":
    run_script(algorithm(**RESUMABLE), Two(), TASKS, weights_digests)
