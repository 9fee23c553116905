"""Text environments in the manner of Gymnasium: `reset`, `step`, and observations that are text or messages.

An observation is the next user message; a list of messages may begin with a system message. The action is the text of
the model's answer, and the reward of a rollout is the sum over its steps. Gymnasium is not required: `reset` may
return the observation alone or with an `info`, `step` four or five values.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ...datasets import Row, TaskRows, check_split, digest
from ...environments import Endpoint, Message, Outcome, OwnThread, converse
from ...errors import MissingPackageError, UserError
from ...plugins import load_object

MAX_TURNS: Final = 16
_VERSION: Final = re.compile(r"-v\d+$")
_SEEDS: Final = 2**31
"""Seeds below this fit every generator of random numbers."""


class GymnasiumEnvironment:
    """Makes an environment for each rollout, resets it with the task's seed, and steps it with the model's answers."""

    def __init__(self, name: str, make: Callable[[], Any], *, max_turns: int = MAX_TURNS, system: str = "") -> None:
        """
        Args:
            name: its name in tasks and messages.
            make: returns a new environment; called in the thread of the rollout.
            max_turns: most model calls of a rollout.
            system: a system message before the first observation.
        """
        self.name = name
        self.make = make
        self.max_turns = max_turns
        self.system = system

    def tasks(self, split: str, size: int, seed: int = 0) -> Sequence[Row]:
        """Return tasks with a seed each; splits share no seed.

        Raises:
            DatasetError: an unknown split.
        """
        return seeded_tasks(self.name, split, size, seed)

    async def rollout(self, task: Mapping[str, Any], endpoint: Endpoint) -> Outcome:
        """Play until the environment ends, or `max_turns` calls are made.

        Raises:
            ValueError: an observation or a step is of another shape.
            Exception: whatever the environment raises.
        """
        total, steps = 0.0, 0
        async with OwnThread(f"gymnasium-{self.name}") as thread:
            world = await thread.call(self.make)

            async def follow(reply: Message) -> Sequence[Message]:
                nonlocal total, steps
                observed, reward, ended = _read_step(await thread.call(world.step, str(reply.get("content") or "")))
                total, steps = total + reward, steps + 1
                return [] if ended else as_messages(observed)

            try:
                first = await thread.call(world.reset, seed=task["seed"])
                observed = first[0] if isinstance(first, tuple) and len(first) == 2 else first
                system = [{"role": "system", "content": self.system}] if self.system else []
                messages = [*system, *as_messages(observed)]
                await converse(endpoint, messages, follow, max_turns=self.max_turns)
            finally:
                thread.last(lambda: world.close())
        return Outcome({"reward": total, "turns": float(steps)}, messages[-1].get("content"))


def gymnasium_environment(name: str, options: Mapping[str, Any]) -> GymnasiumEnvironment:
    """Return the environment of an id that is registered with Gymnasium (or is by a module, as `module:Maze-v0`), or of
    `module:Class`.

    `options` are keywords of the class, but for `max_turns` and `system`.

    Raises:
        MissingPackageError: an id is given, and gymnasium is not installed.
        UserError: there is no such environment.
    """
    keywords = {key: value for key, value in options.items() if key not in ("max_turns", "system")}
    turns, system = options.get("max_turns", MAX_TURNS), str(options.get("system", ""))
    if not isinstance(turns, int) or turns < 1:
        raise UserError(f"max_turns={turns!r}: a whole number of 1 or more", setting="env")
    module, _, registered = name.rpartition(":")
    try:
        if module and not _VERSION.search(name):
            kind = load_object(name)
            return GymnasiumEnvironment(name, lambda: kind(**keywords), max_turns=turns, system=system)
        if module:  # importing it registers the id, as in Gymnasium's "module:id"
            load_object(f"{module}:__name__")
    except Exception as error:  # the user's module may fail in any way while it is imported
        raise UserError(f"{name!r} cannot be loaded: {type(error).__name__}: {error}", setting="env") from error
    try:
        import gymnasium
    except ImportError as error:
        raise MissingPackageError(f"'gymnasium:{name}'", "gymnasium", extra="environments", setting="env") from error
    try:
        gymnasium.spec(registered)
    except gymnasium.error.Error as error:
        raise UserError(f"gymnasium has no {name!r}: {error}", setting="env") from error
    return GymnasiumEnvironment(name, lambda: gymnasium.make(registered, **keywords), max_turns=turns, system=system)


def as_messages(observed: Any) -> list[Message]:
    """Return an observation as messages: a text becomes a user message.

    Raises:
        ValueError: it is neither text nor messages.
    """
    if isinstance(observed, str):
        return [{"role": "user", "content": observed}]
    if isinstance(observed, Mapping) and isinstance(observed.get("role"), str):
        return [dict(observed)]
    if isinstance(observed, list | tuple) and observed:
        return [message for each in observed for message in as_messages(each)]
    raise ValueError(
        f"an observation is a {type(observed).__name__}: text, a message or a list of messages is needed, as a "
        "wrapper of the environment can make it"
    )


def _read_step(step: Any) -> tuple[Any, float, bool]:
    """Return observation, reward and whether the episode is over.

    Raises:
        ValueError: the step has another shape, or no reward.
    """
    if not isinstance(step, tuple) or len(step) not in (4, 5):
        raise ValueError(f"a step returns 4 or 5 values, not {type(step).__name__}")
    if step[1] is None:
        raise ValueError("a step gave no reward: None is not 0")
    return step[0], float(step[1]), any(map(bool, step[2:-1]))


def seeded_tasks(name: str, split: str, size: int, seed: int) -> TaskRows:
    """Return `size` tasks with a `seed` each. Splits share no seed, whatever the value of `seed`.

    Raises:
        DatasetError: an unknown split, or a negative size.
    """
    place = {"train": 0, "val": 1, "test": 2}[check_split(split)]
    count = max(0, size)
    first = random.Random(f"{name}/{seed}").randrange(_SEEDS // 3 - count) * 3 + place
    rows: list[Row] = []
    for number in range(count):
        row_seed = first + 3 * number
        question = f"{name}, seed {row_seed}"
        rows.append({"id": digest(question)[:16], "question": question, "answer": "", "seed": row_seed})
    return TaskRows(rows)
