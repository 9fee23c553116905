"""`learn`, which learns from the sessions of a server in use: its settings and the command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import typer
from pydantic import Field

from ...algorithm.settings import GRPOSettings
from ...commands.options import TRAIN, settings_command
from ...config import PollSettings, Settings, restated
from ...metrics import counted
from ...policy import LearnerSettings

USE_LOOP: Final[Mapping[str, Any]] = {
    "baseline": "none",  # advantages are computed before: groups of sessions have different sizes
    "normalize_advantage": False,
    "samples_per_prompt": 1,
    "importance_correction": "token",
}
"""Settings of the update that a person does not set."""


def use_loop(**given: Any) -> GRPOSettings:
    """Return the settings of the update, with those that learning from use needs."""
    return GRPOSettings(**{**USE_LOOP, **given})


class UseSettings(Settings):
    """When a step is taken, and on which sessions."""

    min_sessions: int = Field(default=16, ge=1)
    """Number of judged sessions with something to compare them with, from which a step is taken."""
    max_sessions: int = Field(default=64, ge=1)
    """At most this many sessions in one step; the others wait for the next."""
    max_age: int = Field(default=16, ge=0)
    """Sessions answered by weights that are more than this many versions old are left out. Others get importance
    weights."""
    group_judged: int = Field(default=4, ge=2)
    """Number of sessions with the same key that a judge scores against each other."""


class LearnSettings(Settings):
    """The settings of `learn`."""

    defaults: ClassVar[Mapping[str, Any]] = {
        # rewards of people are few and noisy, so steps are smaller
        "learner.learning_rate": 1e-4,
        # old answers were sampled by other weights; importance_cap bounds their weight
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
    """Model that scores ended sessions without a reward against others with the same key; its API key is
    OPENAI_API_KEY. Without a model only the rewards count that sessions were given."""
    judge_base_url: str | None = None
    """Endpoint of that model; by default OPENAI_BASE_URL, or OpenAI's."""
    judge_rubric: str | None = None
    """Criterion by which one conversation is better than another, in a sentence or two."""

    use: UseSettings = UseSettings()
    loop: GRPOSettings = GRPOSettings()
    learner: LearnerSettings = LearnerSettings()


def learn(settings: LearnSettings) -> None:
    """Learn from the sessions of a server in use (serve --learn-from-use), and publish what was learnt to it."""
    from . import learn_job  # torch is imported here, and not for --help

    done = learn_job(settings)
    steps, sessions = counted(done["steps"], "step"), counted(done["sessions"], "session")
    taken = f"{steps} on {sessions}" if done["steps"] else "no step was taken"
    typer.echo(f"{taken}; version {done['version']}")


def add_learn_command(app: typer.Typer) -> None:
    """Add `learn` to the commands of the package."""
    settings_command(app, "learn", LearnSettings, panel=TRAIN)(learn)
