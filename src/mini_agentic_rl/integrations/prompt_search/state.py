"""The settings of a search, and its state: its prompts with their ancestry and scores, written to every checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import Field

from ...algorithm.settings import OnFailure
from ...config import Settings
from ...errors import UserError
from ...files import read_json, reading
from ...types import PromptTemplate

STATE_FILE = "apo.json"
"""Name of the state's file, in checkpoints and in the result."""
_BEST = "best_prompt.txt"


class APOSettings(Settings):
    """Width and length of the search, batch sizes, and the models of the critic."""

    gradient_model: str = "gpt-5-mini"
    """Model that criticises a prompt: the textual gradient (Pryzant et al. 2023, section 2.1)."""
    apply_edit_model: str = "gpt-4.1-mini"
    """Model that rewrites a prompt so that it answers a criticism."""
    gradient_batch_size: int = Field(default=4, ge=1)
    """Training tasks that a prompt is tried on before its criticism."""
    val_batch_size: int = Field(default=16, ge=1)
    """Validation tasks on which the candidates of a round are compared, the same ones for all."""
    beam_width: int = Field(default=4, ge=1)
    """Prompts that survive a round."""
    branch_factor: int = Field(default=4, ge=1)
    """New prompts made of each parent in a round."""
    beam_rounds: int = Field(default=3, ge=0)
    """Rounds."""
    run_initial_validation: bool = True
    """Measure the first prompt on all validation tasks, so that a worse one cannot replace it."""
    rollout_batch_timeout: float = Field(default=3600.0, gt=0)
    """Seconds for the rollouts of one prompt; n prompts that run together get n times that. Unfinished rollouts are
    cancelled."""
    on_failure: OnFailure = "zero"
    """Treatment of a rollout that fails, takes too long or earns no reward: it counts as 0 (`zero`), is left out of
    its prompt's mean (`drop`), or is tried again after a failure and counts as 0 when it fails for good (`retry`)."""
    max_attempts: int = Field(default=3, ge=1)
    """At most this many attempts at a rollout with `on_failure="retry"`."""
    prompt_name: str | None = None
    """Name of the resource to improve; required if the initial resources have several prompts."""
    critic_timeout: float = Field(default=120.0, gt=0)
    """Timeout of one answer of the critic, in seconds; the client retries up to its `max_retries`."""
    critic_concurrency: int = Field(default=8, ge=1)
    """Maximum number of concurrent calls of the critic."""
    edit_attempts: int = Field(default=2, ge=1)
    """Maximum number of attempts at a usable rewritten prompt."""
    transcript_characters: int = Field(default=6000, ge=200)
    """Maximum length of a rollout's transcript for the critic; longer ones are cut in the middle."""
    diversity_temperature: float | None = Field(default=1.0, ge=0)
    """Sampling temperature of the critic; None sends none, for models that accept none."""
    seed: int = Field(default=0, ge=0)
    """Seed of the order of the tasks and of the rollouts' sampling."""


@dataclass
class Version:
    """One prompt template."""

    name: str
    """`v0` is the first prompt; each further one has the next number."""
    template: str
    parent: str | None = None
    """Name of the version that it was derived from."""
    round: int = 0
    """The round that made it, from 1; 0 for the first prompt."""
    critique: str | None = None
    """The criticism of its parent that it answers."""
    scores: list[tuple[int, float | None]] = field(default_factory=list)
    """(round, mean reward on that round's validation batch); None where no rollout earned a reward."""
    score: float | None = None
    """Mean reward on all validation tasks; None where that was not measured."""

    @property
    def latest(self) -> float | None:
        """Score on the most recent batch."""
        return self.scores[-1][1] if self.scores else None


@dataclass
class Search:
    """State of a search: the prompts with their ancestry and scores, and which of them survive."""

    versions: list[Version]
    """All prompts, in the order of creation; the first is the prompt to improve, `v0`."""
    beam: list[str] = field(default_factory=lambda: ["v0"])
    """Names of the survivors, best first."""
    best: str = "v0"
    """Name of the version with the highest score on all validation tasks."""
    begun: bool = False
    """True once the initial validation is done or skipped."""
    rounds: int = 0
    """Finished rounds."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Time by phase."""
    logged: int = 0
    """Rows of metrics that were logged."""
    rejected: dict[str, int] = field(default_factory=dict)
    """Number of rejected prompts by reason."""
    unrewarded: dict[str, int] = field(default_factory=dict)
    """Number of rollouts without a reward, by reason."""
    rewarded: int = 0
    """Number of rollouts with a reward."""

    @classmethod
    def read(cls, folder: Path, template: str) -> Search:
        """Read the state in a checkpoint."""
        path = folder / STATE_FILE
        if not path.is_file():
            raise UserError(
                f"the checkpoint {folder} was not written by APO: choose another `output_dir`, or `resume=False`"
            )
        with reading(path):
            state = read_json(path)
            versions = [
                Version(**{**version, "scores": [tuple(pair) for pair in version["scores"]]})
                for version in state.pop("versions")
            ]
            search = cls(versions=versions, **state)
            first = search.versions[0]
        if first.template != template:
            raise UserError(
                f"the search in {folder} started from another prompt than `initial_resources` hold now: "
                "give the same prompt, or `resume=False` and another `output_dir`"
            )
        return search

    def write(self, folder: Path, prompt: PromptTemplate | None = None) -> None:
        """Write the whole state, and beside it the text of the best prompt.

        Args:
            prompt: the best version as a resource, for the result of a finished search, which has it, the best version
                and the history.
        """
        state = asdict(self)
        if prompt is not None:
            state = {"prompt": prompt.model_dump(), **asdict(self.winner), "history": self.history}
        text = json.dumps(state, indent=2, ensure_ascii=False) + "\n"
        (folder / STATE_FILE).write_text(text, encoding="utf-8")
        (folder / _BEST).write_text(self.winner.template, encoding="utf-8")

    @property
    def winner(self) -> Version:
        """The best version so far."""
        return self.version(self.best)

    @property
    def history(self) -> list[dict[str, Any]]:
        """A row for each version, in the order of making."""
        rows = [asdict(version) for version in self.versions]
        return [{"version": row.pop("name"), **row} for row in rows]

    @property
    def summary(self) -> Mapping[str, Any]:
        """The best prompt, rounds, seconds, history, and counts of rejected prompts and unrewarded rollouts."""
        return {
            "best_version": self.winner.name,
            "best_prompt": self.winner.template,
            "score": self.winner.score,
            "rounds": self.rounds,
            "seconds": dict(self.seconds),
            "history": self.history,
            "rejected": dict(self.rejected),
            "unrewarded": dict(self.unrewarded),
        }

    def version(self, name: str) -> Version:
        """Return the version of this name."""
        return next(version for version in self.versions if version.name == name)

    @property
    def survivors(self) -> list[Version]:
        """The beam, best first."""
        return [self.version(name) for name in self.beam]

    def add(self, template: str, parent: Version, critique: str) -> Version | None:
        """Add and return a new version; None where the template is that of an earlier one."""
        if any(version.template.strip() == template.strip() for version in self.versions):
            return None
        version = Version(f"v{len(self.versions)}", template, parent.name, self.rounds + 1, critique)
        self.versions.append(version)
        return version

    def spend(self, phase: str, seconds: float) -> None:
        """Add to a phase's time."""
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds
