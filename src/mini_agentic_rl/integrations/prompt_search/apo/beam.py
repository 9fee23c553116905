"""The prompts of a search: their family tree, their scores, and who survives. Written whole into every checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ..state import SearchState


@dataclass
class Version:
    """One prompt template."""

    name: str
    """`v0` is the first prompt; each further one has the next number."""
    template: str
    parent: str | None = None
    """Name of the version that it was made of."""
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
        """Its score on the newest batch that it was tried on."""
        return self.scores[-1][1] if self.scores else None


@dataclass
class Search(SearchState):
    """State of a search."""

    algorithm: ClassVar[str] = "APO"
    unit: ClassVar[str] = "round"

    versions: list[Version]
    beam: list[str]
    """Names of the survivors, best first."""
    best: str
    """Name of the version with the highest score on all validation tasks."""
    begun: bool = False
    """True once the first prompt has been measured, where that is asked for."""
    rounds: int = 0
    """Finished rounds."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Time by phase."""

    @classmethod
    def begin(cls, template: str) -> Search:
        """Return a search that starts from one prompt."""
        return cls(versions=[Version("v0", template)], beam=["v0"], best="v0")

    @classmethod
    def parse(cls, state: dict[str, Any]) -> Search:
        versions = [
            Version(**{**version, "scores": [tuple(pair) for pair in version["scores"]]})
            for version in state.pop("versions")
        ]
        return cls(versions=versions, **state)

    @property
    def steps(self) -> int:
        return self.rounds

    @property
    def first(self) -> Version:
        return self.versions[0]

    @property
    def winner(self) -> Version:
        return self.version(self.best)

    @property
    def history(self) -> list[dict[str, Any]]:
        return [_row(version) for version in self.versions]

    @property
    def progress(self) -> Mapping[str, Any]:
        return {"rounds": self.rounds, "seconds": dict(self.seconds)}

    def version(self, name: str) -> Version:
        """Return the version of this name."""
        return next(version for version in self.versions if version.name == name)

    def survivors(self) -> list[Version]:
        """Return the beam, best first."""
        return [self.version(name) for name in self.beam]

    def parents(self, width: int) -> list[Version]:
        """Return `width` parents for the next round; a beam that is not full yet is gone through again."""
        beam = self.survivors()
        return [beam[index % len(beam)] for index in range(width)]

    def add(self, template: str, parent: Version, critique: str) -> Version | None:
        """Add and return a new version; None where the template is that of an earlier one."""
        if any(version.template.strip() == template.strip() for version in self.versions):
            return None
        version = Version(f"v{len(self.versions)}", template, parent.name, self.rounds + 1, critique)
        self.versions.append(version)
        return version

    def select(self, candidates: Sequence[Version], width: int) -> Version:
        """Keep the `width` best candidates by their latest score, the older one first where two are equal.

        Returns:
            The best of them.
        """
        ordered = sorted(candidates, key=lambda v: (v.latest is None, -(v.latest or 0.0)))
        self.beam = [version.name for version in ordered[:width]]
        return ordered[0]

    def crown(self, leader: Version) -> bool:
        """Make `leader` the best version if its score on all validation tasks is the highest so far."""
        best = self.winner.score
        if leader.score is None or (best is not None and leader.score <= best):
            return False
        self.best = leader.name
        return True

    def spend(self, phase: str, seconds: float) -> None:
        """Add to a phase's time."""
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds


def _row(version: Version) -> dict[str, Any]:
    return {
        "version": version.name,
        "parent": version.parent,
        "round": version.round,
        "score": version.score,
        "scores": list(version.scores),
        "critique": version.critique,
        "template": version.template,
    }
