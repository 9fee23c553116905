"""Progress of a run: written into every checkpoint, so that a killed run goes on from it exactly."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch

from ...errors import UserError
from ...files import read_json, reading
from ...policy import Learner, Policy, save_weights, write_state
from .objective import Learners, Objective

_STATE = "state.json"
_OPTIMIZER = "optimizer.pt"
_WARM_UP = "warm_up.pt"
_RNG = "rng.pt"
_ADAPTER = "adapter"
_ADAPTERS = "adapters"


class Replayable(TypedDict):
    """A group of an earlier step that can be replayed."""

    step: int
    """Number of finished steps when it was sampled, its own among them."""
    adapter: str
    rollouts: list[str]
    """Ids of its rollouts."""
    right: float
    """Share of those that were right."""
    uses: int
    """Number of times that it was replayed."""


@dataclass
class RunProgress:
    """The data cursor and the results so far: with the seed the first three say which tasks come next."""

    step: int = 0
    """Finished reinforcement-learning steps."""
    extra_tasks: int = 0
    """Tasks that these steps drew beyond `tasks_per_step` each, by dynamic sampling."""
    pass_rates: dict[str, float] = field(default_factory=dict)
    """Fraction of rollouts that solved each task, by its row, where a curriculum asks for it."""
    warmed_up: bool = False
    """True once the supervised warm-up is done."""
    imitated: dict[str, int] = field(default_factory=dict)
    """Optimizer steps of the supervised warm-up so far, by adapter."""
    readiness: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Result of the latest probe of the warm-up, by adapter: the fields of `Readiness`, and `ready`."""
    solved: dict[str, str] = field(default_factory=dict)
    """A right rollout of each task, by its row, where failed tasks are tried again with an expert's first calls."""
    prefix_calls: dict[str, int] = field(default_factory=dict)
    """Calls that a task is given at such a try, by its kind, or by its row where it has none."""
    level_draws: dict[str, int] = field(default_factory=dict)
    """Tasks of each level drawn so far, where a curriculum asks for it."""
    replay: list[Replayable] = field(default_factory=list)
    """Groups that can be replayed."""
    validation: list[dict[str, Any]] = field(default_factory=list)
    """Validations so far: step, correct, count."""
    logged: int = 0
    """Rows of metrics so far."""
    accuracy: list[dict[str, Any]] = field(default_factory=list)
    """Measurements so far: name, correct, count."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Time by phase."""
    untrained: dict[str, int] = field(default_factory=dict)
    """Rollouts that gave nothing to train on, by reason."""
    rollouts: int = 0
    """Rollouts of the training."""
    trainable: int = 0
    """Those of them that could be trained."""
    run: str = ""
    """Name of the run in the metadata of rollouts, where sampling runs ahead."""
    drawn: int = 0
    """Groups that were drawn so far, where sampling runs ahead."""
    pending: dict[str, int] = field(default_factory=dict)
    """Tasks of those of them that were not learnt, by their numbers (as text, for JSON)."""
    updates: list[dict[str, int]] = field(default_factory=list)
    """Versions of all adapters after each of the last updates, where sampling runs ahead."""

    def spend(self, phase: str, seconds: float) -> None:
        """Add to a phase's time."""
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds


def write_checkpoint(
    folder: Path, policy: Policy, objective: Objective, progress: RunProgress, warm_up: Learner | None
) -> None:
    """Write adapters, optimizers, the objective's own state, RNG and cursor. On the torch thread.

    Args:
        warm_up: The learner of the supervised warm-up, while that is under way.
    """
    policy.check_agreement()
    learners = objective.learners
    for name, learner in learners.items():
        weights, optimizer = _paths(folder, name, learners)
        save_weights(policy.model, weights, name)
        learner.save_state(optimizer)
    if warm_up is not None:
        warm_up.save_state(folder / _WARM_UP)
    objective.save_state(folder)
    version, words, position, has_gauss, gauss = np.random.get_state(legacy=True)
    write_state(
        folder / _RNG,
        {
            "torch": torch.get_rng_state(),
            "python": json.dumps(random.getstate()),
            "numpy": [str(version), torch.from_numpy(np.asarray(words).astype(np.int64)), position, has_gauss, gauss],
        },
    )
    (folder / _STATE).write_text(json.dumps(asdict(progress), indent=2), encoding="utf-8")


_ADVICE = "delete that checkpoint, and `resume` goes on from the one before"


def read_progress(folder: Path) -> RunProgress:
    """Read the cursor of a checkpoint."""
    with reading(folder / _STATE, advice=_ADVICE):
        return RunProgress(**read_json(folder / _STATE))


def restore(folder: Path, policy: Policy, objective: Objective) -> None:
    """Read back weights, optimizers, the objective's own state and RNG of a checkpoint. On the torch thread.

    Raises:
        UserError: the checkpoint is of other adapters, or a file of it is damaged.
    """
    learners = objective.learners
    several = folder / _ADAPTERS
    saved = sorted(path.name for path in several.iterdir() if path.is_dir()) if several.is_dir() else []
    if saved != (sorted(learners) if len(learners) > 1 else []):
        raise UserError(
            f"the checkpoint {folder} is of {', '.join(saved) or 'one adapter'}: resume it with the same adapters"
        )
    restore_weights(folder, policy, learners)
    for name, learner in learners.items():
        learner.load_state(_paths(folder, name, learners)[1])
    with reading(folder, advice=_ADVICE):
        objective.load_state(folder)
    with reading(folder / _RNG, advice=_ADVICE):
        state = torch.load(folder / _RNG, weights_only=True)
        torch.set_rng_state(state["torch"])
        version, words, gauss = json.loads(state["python"])
        random.setstate((version, tuple(words), gauss))
        name, keys, position, has_gauss, cached = state["numpy"]
        np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, cached))


def restore_warm_up(folder: Path, learner: Learner) -> None:
    """Read back the optimizer of the warm-up that was under way. On the torch thread.

    Raises:
        UserError: its file is damaged.
    """
    learner.load_state(folder / _WARM_UP)


def restore_weights(folder: Path, policy: Policy, learners: Learners) -> None:
    """Read back the weights of a checkpoint, and nothing else. On the torch thread."""
    for name in learners:
        policy.read_weights(_paths(folder, name, learners)[0], name)


def save_adapters(folder: Path, policy: Policy) -> None:
    """Save each adapter that is trained in a folder of its name."""
    for name in policy.model.adapters:
        policy.save(folder / name, name)


def _paths(folder: Path, name: str, learners: Learners) -> tuple[Path, Path]:
    """Return the paths of the weights and of the optimizer of an adapter."""
    if len(learners) == 1:
        return folder / _ADAPTER, folder / _OPTIMIZER
    return folder / _ADAPTERS / name, folder / _ADAPTERS / f"{name}.{_OPTIMIZER}"
