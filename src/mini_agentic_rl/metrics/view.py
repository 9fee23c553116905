"""The view of a run that the rules of the doctor read, and the findings that they return."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal

Level = Literal["fault", "watch"]
"""A fault keeps a run from learning or harms what it learns; `watch` may become one."""

_QUOTED: Final = re.compile(r"`([a-z_0-9]+)(?:=[^`]*)?`")


@dataclass(frozen=True)
class Finding:
    """A fault of a run."""

    rule: str
    """Name of the rule, the same in every run."""
    level: Level
    title: str
    """The fault in a few words."""
    seen: str
    """Figures that show it."""
    advice: str
    """Advice, with the names of settings in backticks."""
    rollouts: tuple[str, ...] = ()
    """Ids of example rollouts."""
    adapter: str = ""
    """Name of the adapter, if several are trained."""

    @property
    def settings(self) -> tuple[str, ...]:
        """Settings that the advice names."""
        return tuple(dict.fromkeys(_QUOTED.findall(self.advice)))

    @property
    def head(self) -> str:
        """Title of the fault with its adapter."""
        return f"adapter {self.adapter}: {self.title}" if self.adapter else self.title

    @property
    def body(self) -> str:
        """Figures and advice in one line."""
        return f"{self.seen}. {self.advice}."

    def as_json(self) -> Mapping[str, Any]:
        """Return it as JSON values, with the settings."""
        return {**asdict(self), "rollouts": list(self.rollouts), "settings": list(self.settings)}


WINDOW: Final = 5
"""Number of last, or first, steps that a rule looks at."""
_EXAMPLES: Final = 3

_STEP_SIGN: Final = "rollout/failed"
_GROUPS: Final = "groups/count"
_PROBE: Final = {"sft/pass_1", "sft/pass_8"}
_MEASUREMENTS: Final = ("accuracy", "validation/accuracy")


@dataclass(frozen=True)
class StepNumbers:
    """The metrics of one step of reinforcement learning."""

    step: int
    numbers: Mapping[str, float]


@dataclass(frozen=True)
class Measured:
    """One measurement on tasks that are not trained."""

    step: int
    name: str
    """`accuracy`, or `validation/accuracy` of the tasks that choose the weights."""
    accuracy: float
    count: int | None = None
    """Number of its tasks, if known."""


@dataclass(frozen=True)
class RolloutFacts:
    """Facts of a finished rollout that the rules use."""

    rollout_id: str
    succeeded: bool = True
    reward: float | None = None
    why: str | None = None
    """Reason why it failed, or yielded nothing to train on."""
    offered_tools: bool = False
    tool_calls: int = 0
    """LLM calls that were answered with a tool call."""
    cut: bool = False
    """True if its last call ended at a length bound."""


@dataclass(frozen=True)
class RunView:
    """A run as the rules read it.

    The metrics are those of `metrics.jsonl`. The rollouts, if any, are some of the newest of the store: they serve as
    examples, and replace metrics that older runs lack.
    """

    steps: Sequence[StepNumbers]
    """Steps of reinforcement learning, in order."""
    measured: Sequence[Measured] = ()
    """Measurements in order."""
    rollouts: Sequence[RolloutFacts] = ()
    adapter: str = ""
    """Name of the adapter of the steps, if several are trained."""
    probes: Sequence[tuple[float, float]] = ()
    """pass@1 and pass@8 of the probes of the warm-up, in order."""

    @classmethod
    def of_rows(
        cls,
        rows: Iterable[Mapping[str, Any]],
        *,
        rollouts: Sequence[RolloutFacts] = (),
        eval_size: int | None = None,
    ) -> RunView:
        """Return the view of a run from the rows of its metrics.

        Args:
            eval_size: number of tasks of a measurement, if known.
        """
        steps: list[StepNumbers] = []
        measured: list[Measured] = []
        probes: list[tuple[float, float]] = []
        for row in rows:
            numbers = {
                name: float(value)
                for name, value in row.items()
                if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            }
            step = int(numbers.pop("step", 0))
            if _STEP_SIGN in numbers or any(name.endswith(_GROUPS) for name in numbers):
                steps.append(StepNumbers(step, numbers))
            elif numbers.keys() >= _PROBE:
                probes.append((numbers["sft/pass_1"], numbers["sft/pass_8"]))
            elif "phase" not in row or str(row["phase"]).startswith(("evaluation", "reinforcement")):
                size = eval_size or None
                measured += [Measured(step, name, numbers[name], size) for name in _MEASUREMENTS if name in numbers]
        return cls(steps, measured, rollouts, probes=probes)

    def parts(self) -> list[RunView]:
        """Return the view itself and, if several adapters are trained, a view of each adapter with its metrics under
        their plain names."""
        ending = f"/{_GROUPS}"
        names = [name for step in self.steps for name in step.numbers if name.endswith(ending)]
        adapters = dict.fromkeys(name.removesuffix(ending) for name in names)
        return [self, *map(self._of, adapters)]

    def _of(self, adapter: str) -> RunView:
        prefix = f"{adapter}/"
        steps = []
        for step in self.steps:
            of_adapter = {name.removeprefix(prefix): n for name, n in step.numbers.items() if name.startswith(prefix)}
            steps.append(StepNumbers(step.step, {**step.numbers, **of_adapter}))
        return replace(self, steps=steps, adapter=adapter)

    def last(self, *names: str) -> list[tuple[float, ...]]:
        """Return these metrics of the last steps that have them all, oldest first."""
        return self._with(names)[-WINDOW:]

    def first(self, *names: str) -> list[tuple[float, ...]]:
        """Return these metrics of the first steps that have them all, oldest first."""
        return self._with(names)[:WINDOW]

    def examples(self, rollouts: Iterable[RolloutFacts]) -> tuple[str, ...]:
        """Return the ids of the first of these rollouts."""
        return tuple(rollout.rollout_id for rollout in rollouts)[:_EXAMPLES]

    def _with(self, names: Sequence[str]) -> list[tuple[float, ...]]:
        return [
            tuple(step.numbers[name] for name in names)
            for step in self.steps
            if all(name in step.numbers for name in names)
        ]


def mean(values: Iterable[float]) -> float:
    """Return the mean of numbers; NaN without numbers."""
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else math.nan
