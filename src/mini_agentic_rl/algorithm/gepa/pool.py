"""The prompts of a search with their scores on each validation task. Written whole into every checkpoint."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ...atomic_files import read_json
from ...damaged_files import reading
from ...errors import UserError

_STATE = "gepa.json"
_BEST = "best_prompt.txt"


@dataclass
class PooledPrompt:
    """One prompt template of the pool."""

    name: str
    """`v0` is the first prompt; each further one has the next number."""
    template: str
    parent: str | None
    scores: list[float]
    """Its reward on each validation task of the front."""
    iteration: int = 0
    """The iteration that made it."""

    @property
    def score(self) -> float:
        """Mean of its scores."""
        return sum(self.scores) / len(self.scores)


@dataclass
class Pool:
    """State of a search."""

    prompts: list[PooledPrompt] = field(default_factory=list)
    iteration: int = 0
    """Finished iterations."""
    tried: int = 0
    """Successors that were tried, of which `prompts` holds those that were better."""
    rollouts: int = 0
    """Rollouts so far."""
    logged: int = 0
    """Rows of metrics that were logged."""
    rejected: dict[str, int] = field(default_factory=dict)
    """Iterations that came to nothing, by reason."""
    unrewarded: dict[str, int] = field(default_factory=dict)
    """Rollouts that earned no reward, by reason."""

    @property
    def best(self) -> PooledPrompt:
        """Return the prompt with the highest mean; of equal ones the oldest."""
        return max(self.prompts, key=lambda prompt: prompt.score)

    def reject(self, reason: str) -> None:
        """Count an iteration that came to nothing."""
        self.rejected[reason] = self.rejected.get(reason, 0) + 1


def write_pool(folder: Path, pool: Pool) -> None:
    """Write the whole state, and beside it the text of the best prompt."""
    (folder / _STATE).write_text(json.dumps(asdict(pool), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / _BEST).write_text(pool.best.template, encoding="utf-8")


def read_logged(folder: Path) -> int:
    """Return the number of rows that a search had logged when it wrote a checkpoint."""
    with reading(folder / _STATE):
        return int(read_json(folder / _STATE)["logged"])


def read_pool(folder: Path, template: str) -> Pool:
    """Read the state in a checkpoint.

    Raises:
        UserError: it is the checkpoint of another algorithm, or of a search from another prompt than `template`.
    """
    path = folder / _STATE
    if not path.is_file():
        raise UserError(
            f"the checkpoint {folder} was not written by GEPA: choose another `output_dir`, or `resume=False`"
        )
    with reading(path):
        state = read_json(path)
        prompts = [PooledPrompt(**prompt) for prompt in state.pop("prompts")]
        found = Pool(prompts=prompts, **state)
    if prompts[0].template != template:
        raise UserError(
            f"the search in {folder} started from another prompt than `initial_resources` hold now: "
            "give the same prompt, or `resume=False` and another `output_dir`"
        )
    return found
