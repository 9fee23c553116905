"""The settings of `sweep`, and the runs that they stand for."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

from pydantic import Field, ValidationError

from ..config import COMMAS
from ..errors import UserError
from .config import TrainConfig, with_agent_defaults

_OWN: Final = ("seed", "output_dir", "resume", "overwrite", "json_output", "console")
_UNSAFE: Final = re.compile(r"[^\w.,=+-]+")


class SweepSettings(TrainConfig):
    """The settings of `sweep`: all that `train` has, several values of some, and several seeds."""

    defaults: ClassVar[Mapping[str, Any]] = {**TrainConfig.defaults, "run.output_dir": Path("outputs/sweep")}
    panels: ClassVar[Mapping[str, Sequence[str]]] = {"Sweep": ("vary", "seeds"), **TrainConfig.panels}
    helps: ClassVar[Mapping[str, str]] = {
        **TrainConfig.helps,
        "loop.seed": "Seed of the runs where `seeds` names none.",
        "run.output_dir": "Folder of the sweep: a run folder for each run, and the table.",
        "run.resume": "Go on with the sweep in the output folder: finished runs stay, one that was stopped goes on "
        "from its last checkpoint, and seeds and values may be added.",
        "run.overwrite": "Replace the sweep in the output folder.",
    }

    vary: list[str] = Field(default=[])
    """A setting of `train` and its values, as learning_rate=5e-4,1e-3; several settings are combined with each other.
    Where a value has commas itself, | parts them: difficulty=1|1,2."""
    seeds: Annotated[list[int], COMMAS] = Field(default=[])
    """Seeds; every setting is run with each of them. Several with commas, as 0,1,2."""


@dataclass(frozen=True)
class SweptRun:
    """One run of a sweep."""

    name: str
    """Name of its folder."""
    varied: Mapping[str, str]
    """Settings that differ from the other runs', but for the seed."""
    seed: int
    config: TrainConfig


def swept_runs(settings: SweepSettings) -> list[SweptRun]:
    """Return the runs of a sweep in the order in which they are made: all settings with the first seed, then with the
    next, so that a sweep that is stopped early has something to compare.

    Raises:
        UserError: a setting cannot be varied, has no such value, or is named twice.
    """
    given = settings.model_dump(exclude_unset=True, exclude={"vary", "seeds"})
    base = with_agent_defaults(TrainConfig(**given))
    axes = _axes(settings.vary)
    runs = []
    for seed in dict.fromkeys(settings.seeds or [settings.loop.seed]):
        for values in itertools.product(*axes.values()):
            varied = dict(zip(axes, values, strict=True))
            name = ",".join([*(f"{key}={value}" for key, value in varied.items()), f"seed={seed}"])
            name = _UNSAFE.sub("-", name)
            own = {"output_dir": settings.run.output_dir / name, "seed": seed}
            try:
                config = base.changed(**{**varied, **own, "resume": True, "overwrite": False, "json_output": False})
            except ValidationError as error:
                problem = error.errors()[0]
                raise UserError(f"{varied}: {problem['msg']}", setting="vary") from None
            runs.append(SweptRun(name, varied, seed, config))
    if len({run.name for run in runs}) < len(runs):
        raise UserError("two runs would have one name: give each value once", setting="vary")
    return runs


def _axes(vary: Sequence[str]) -> dict[str, list[str]]:
    """Return the values of each setting that is varied."""
    axes: dict[str, list[str]] = {}
    for text in vary:
        name, equals, values = text.partition("=")
        name = name.strip().removeprefix("--").replace("-", "_")
        found = [value.strip() for value in values.split("|" if "|" in values else ",") if value.strip()]
        if not equals or not found:
            raise UserError(f"{text!r}: write a setting and its values, as learning_rate=5e-4,1e-3", setting="vary")
        if name in _OWN or name not in TrainConfig.settings():
            why = "give `seeds`" if name == "seed" else "it is no setting of `train` that runs can differ in"
            raise UserError(f"{name}: {why}", setting="vary")
        if name in axes:
            raise UserError(f"{name} is named twice: give all of its values at once", setting="vary")
        axes[name] = list(dict.fromkeys(found))
    return axes
