"""`learn`: learns from the sessions of a server in use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import typer
from pydantic import Field

from ...algorithm import GRPOSettings
from ...cli.options import TRAIN, settings_command
from ...config import Settings, restated
from ...jobs import PollSettings
from ...metrics import counted
from ...policy import LearnerSettings
from .settings import UseSettings


class LearnSettings(Settings):
    """The settings of `learn`."""

    defaults: ClassVar[Mapping[str, Any]] = {
        # what people say is scarce and noisy: smaller steps than those of a training that can try again
        "learner.learning_rate": 1e-4,
        # old answers were sampled by other weights: what they differ by is a weight, up to importance_cap
        "loop.importance_correction": "token",
    }
    panels: ClassVar[Mapping[str, Sequence[str]]] = {
        "Sessions": ("folder", "use.*", "once", "poll_seconds"),
        "Judge": ("judge_model", "judge_base_url", "judge_rubric"),
        "Update": (
            "learner.learning_rate",
            "loop.policy_loss",
            "loop.clip_ratio",
            "loop.importance_correction",
            "loop.importance_cap",
            "loop.loss_aggregation",
            "loop.kl_coef",
            "loop.epochs_per_batch",
        ),
        "Memory": ("learner.max_batch_tokens", "learner.checkpointing"),
    }

    folder: Path = Field(default=Path("runs/use"), json_schema_extra={"argument": True})
    """Folder that `serve --learn-from-use` records in."""
    once: bool = restated(
        PollSettings,
        "once",
        False,
        "Take the steps that can be taken now, and end; otherwise wait for further sessions until Ctrl-C.",
    )
    poll_seconds: float = restated(
        PollSettings, "poll_seconds", 5.0, "Seconds between two looks for sessions that were judged."
    )
    judge_model: str | None = None
    """Model that scores sessions which are over and that nobody has judged, beside others of their key; its key is
    OPENAI_API_KEY. Without one only the numbers count that sessions were given."""
    judge_base_url: str | None = None
    """Endpoint of that model; by default OPENAI_BASE_URL, or OpenAI's."""
    judge_rubric: str | None = None
    """Criterion by which one conversation is better than another, in a sentence or two."""

    use: UseSettings = UseSettings()
    loop: GRPOSettings = GRPOSettings()
    learner: LearnerSettings = LearnerSettings()


def learn(settings: LearnSettings) -> None:
    """Learn from the sessions of a server in use (serve --learn-from-use), and publish what was learnt to it."""
    from .learn import learn_job

    done = learn_job(settings)
    steps, sessions = counted(done["steps"], "step"), counted(done["sessions"], "session")
    taken = f"{steps} on {sessions}" if done["steps"] else "no step was taken"
    typer.echo(f"{taken}; version {done['version']}")


def add_learn_command(app: typer.Typer) -> None:
    """Add `learn` to the commands of the package."""
    settings_command(app, "learn", LearnSettings, panel=TRAIN)(learn)
