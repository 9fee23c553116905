"""What is trained on what: agents and data sets in the ways in which people write them down."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from typing import Any, NamedTuple, cast

from ..errors import UserError
from ..litagent import LitAgent, rollout
from ..types import Dataset
from .components import build, load


class Inputs(NamedTuple):
    """What a run is given; None where nothing was said."""

    agent: LitAgent[Any] | None
    train: Dataset[Any] | None
    val: Dataset[Any] | None

    def filled_from(self, others: Inputs) -> Inputs:
        """These, with those of `others` where there are none."""
        return Inputs(
            others.agent if self.agent is None else self.agent,
            others.train if self.train is None else self.train,
            others.val if self.val is None else self.val,
        )


def read_inputs(agent: Any, train: Any, val: Any) -> Inputs:
    """What `fit(agent, train, val)` was given; without an agent, `fit(train)` and `fit(train, val)` mean the same.

    Raises:
        UserError: one of them is not what its place is for.
        TypeError: a function that does not have the parameters of a rollout.
    """
    chosen = None if agent is None else as_agent(agent)
    if agent is not None and chosen is None:
        if train is not None and val is not None:
            raise UserError(f"agent={type(agent).__name__}: an agent is a LitAgent, its class, or a rollout function")
        train, val = agent, val if train is None else train
    return Inputs(chosen, as_dataset("train_dataset", train), as_dataset("val_dataset", val))


def as_agent(spec: Any) -> LitAgent[Any] | None:
    """The agent that `spec` is: a LitAgent, its class, a rollout function, or a dotted path of one. None: it is none.

    Raises:
        UserError: a path leads nowhere, or the class needs arguments.
        TypeError: a function that does not have the parameters of a rollout.
    """
    if isinstance(spec, str):
        spec = load("agent", spec)
    if isinstance(spec, LitAgent):
        return spec
    if isinstance(spec, type) and issubclass(spec, LitAgent):
        agent: LitAgent[Any] = build("agent", spec, LitAgent)
        return agent
    return rollout(spec) if callable(spec) and not isinstance(spec, Sized) else None


def as_dataset(keyword: str, value: Any) -> Dataset[Any] | None:
    """The data set that `value` is.

    Raises:
        UserError: it is none: no length, a text, or a mapping of several data sets.
    """
    if value is None or (isinstance(value, Sized) and not isinstance(value, (str, Mapping))):
        return cast("Dataset[Any] | None", value)
    raise UserError(
        f"{keyword}={type(value).__name__}: a data set has a length and rows by index, as a list or a datasets.Dataset"
    )
