"""Environments of the package `verifiers` (0.4 or later), with their tasks, rubrics, judges, tools and users.

The package runs and scores its own rollout, with the rollout's URL as the model's endpoint; the gateway records the
calls. The agent is the harness of the environment, by default `mini_agentic_rl_verifiers`, which runs in this process:
the package's default harness starts a Python process for every rollout, which downloads packages and runs commands.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from ...datasets import Row, TaskRows, check_split, divided, split_of
from ...environments import Endpoint, Outcome
from ...errors import MissingPackageError, UserError

PROGRAM: Final = "mini-agentic-rl-verifiers"
"""Id of the harness that runs in this process."""
_BUNDLED: Final = "bash"
"""Default harness of the package."""
_LONGEST_SEARCH: Final = 100_000
"""Maximum number of tasks that are searched for one split."""


class VerifiersEnvironment:
    """Runs the episodes of an environment, which is installed or in the working directory.

    Args:
        name: id of the taskset.
        options: fields of its configuration; `env` holds those of the environment around it, with its seats.

    Raises:
        MissingPackageError: verifiers is not installed.
        UserError: there is no such environment, or its configuration is not valid.
    """

    def __init__(self, name: str, options: Mapping[str, Any] | None = None) -> None:
        self.name = name
        self.options = dict(options or {})
        self._start()

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._known: list[Any] = []
        self._served: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Served] = weakref.WeakKeyDictionary()
        self._config = _configured(self.name, self.options)
        self._taskset = _package().load_taskset(self._config.taskset)
        self._ahead: Iterator[Any] = iter(self._taskset)

    def __getstate__(self) -> dict[str, Any]:
        return {"name": self.name, "options": self.options}  # each process loads its own

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.name, self.options = state["name"], state["options"]
        self._start()

    def tasks(self, split: str, size: int, seed: int = 0) -> Sequence[Row]:
        """Return tasks of one split in the order of the taskset, which is divided 8 : 1 : 1 by the keys of its tasks.

        `seed` has no effect: the environment has its own options.

        Raises:
            UserError: the taskset cannot be loaded.
        """
        wanted = check_split(split)
        every = enumerate(itertools.islice(self._tasks(), _LONGEST_SEARCH))
        try:
            if self._taskset.bounded:
                tasks = list(every)
                mine = divided({task.key for _, task in tasks}, wanted)
                tasks = [(index, task) for index, task in tasks if task.key in mine]
            else:
                of_split = ((index, task) for index, task in every if split_of(task.key) == wanted)
                tasks = list(itertools.islice(of_split, size))
        except Exception as error:  # the environment's code may fail in any way
            raise UserError(f"{self.name} gives no tasks: {type(error).__name__}: {error}", setting="env") from error
        rows: list[Row] = []
        for index, task in tasks[:size]:
            question = task.data.prompt_text or task.data.name or f"{self.name}, task {index}"
            rows.append({"id": f"{self.name}-{index}", "question": question, "answer": "", "index": index})
        return TaskRows(rows)

    async def rollout(self, task: Mapping[str, Any], endpoint: Endpoint) -> Outcome:
        """Run one episode, and return the sum of its weighted rewards, with each reward and metric by its name.

        With several trained seats the reward is their mean. Seats without their own client are played by the endpoint.

        Raises:
            RuntimeError: the environment failed, or scored nothing.
        """
        vf = _package()
        chosen = await asyncio.to_thread(self._task, int(task["index"]))
        client = vf.EvalClientConfig(base_url=endpoint.base_url, api_key_var=_key_variable(endpoint.api_key))
        context = vf.ModelContext(
            model=endpoint.model, client=client, sampling=vf.SamplingConfig(**dict(endpoint.sampling))
        )
        async with self._serving() as env:
            episode = await env.run_episode(chosen, context)
        errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        if not episode.ok:
            reasons = "; ".join(f"{error.type}: {error.message}" for error in errors) or "no reason given"
            raise RuntimeError(f"{self.name} failed: {reasons}")
        trained = [trace for trace in episode.traces if trace.agent.trainable]
        scored = [trace for trace in trained if any(reward is not None for reward in trace.rewards.values())]
        if not scored:
            raise RuntimeError(f"{self.name} gave no reward")
        rewards: dict[str, float] = {}
        for trace in scored:
            values = {name: reward.score for name, reward in trace.rewards.items() if reward is not None}
            rewards |= {**{name: value for name, value in trace.metrics.items() if value is not None}, **values}
        rewards["turns"] = float(sum(trace.num_turns for trace in trained))
        rewards["reward"] = sum(trace.reward for trace in scored) / len(scored)
        return Outcome(rewards, trained[-1].last_reply)

    def _task(self, index: int) -> Any:
        """Return the task at a place of the taskset.

        Raises:
            IndexError: there are fewer.
        """
        with self._lock:
            while len(self._known) <= index:
                task = next(self._ahead, None)
                if task is None:
                    raise IndexError(index)
                self._known.append(task)
            return self._known[index]

    def _tasks(self) -> Iterator[Any]:
        """Yield all tasks; each is kept."""
        for index in itertools.count():
            try:
                yield self._task(index)
            except IndexError:
                return

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[Any]:
        """Yield the environment with its shared servers, which run while any rollout does."""
        loop = asyncio.get_running_loop()
        served = self._served.get(loop)
        if served is None or served.is_over:
            served = self._served[loop] = _Served(_package().load_environment(self._config))
        served.users += 1
        try:
            yield await served.ready()
        finally:
            served.users -= 1
            if served.users == 0:
                served.end()


class _Served:
    """An environment with running servers, from its first rollout until no rollout is running.

    Only then the package closes its clients, one for each rollout's endpoint.
    """

    def __init__(self, env: Any) -> None:
        self.users = 0
        self.is_over = False
        self._env = env
        self._up: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._done = asyncio.Event()
        # One task enters and leaves: scopes of cancellation belong to the task that opened them.
        self._task = asyncio.create_task(self._serve())

    async def ready(self) -> Any:
        return await asyncio.shield(self._up)

    def end(self) -> None:
        self.is_over = True
        self._done.set()

    async def _serve(self) -> None:
        try:
            async with self._env.serving():
                self._up.set_result(self._env)
                await self._done.wait()
        except BaseException as error:
            self.is_over = True
            if not self._up.done():
                self._up.set_exception(error if isinstance(error, Exception) else RuntimeError(str(error)))
                with suppress(BaseException):
                    self._up.exception()
            if not isinstance(error, Exception):
                raise


def _package() -> Any:
    try:
        import verifiers.v1
    except ImportError as error:
        hint = ", in version 0.4 or later, which needs Python 3.11"
        raise MissingPackageError(
            "'verifiers:…'", "verifiers", extra="environments", setting="env", hint=hint
        ) from error
    return verifiers.v1


def _configured(name: str, options: Mapping[str, Any]) -> Any:
    """Return the configuration of an environment, played by this process unless `env` says otherwise."""
    _package()
    from verifiers.v1.utils.loaders import default_harness_id, env_config_type, resolve_env_config

    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    around = options.get("env", {})
    if not isinstance(around, Mapping):
        raise UserError(f"the option env is a JSON object of the environment's fields, not {around!r}", setting="env")
    fields = {key: value for key, value in options.items() if key != "env"}
    try:
        kind = env_config_type(name, str(around.get("id", "")))
        usual: dict[str, Any] = {"runtime": {"type": "subprocess"}}
        if default_harness_id(name) == _BUNDLED:
            usual["harness"] = {"id": PROGRAM}
        seats = {}
        for seat, field in kind.model_fields.items():
            if isinstance(field.default, _package().AgentConfig):
                pinned = field.default.model_fields_set  # by the author of the environment
                free = {key: value for key, value in usual.items() if key not in pinned}
                seats[seat] = {**free, **dict(around.get(seat, {}))}
        return resolve_env_config({**around, "taskset": {"id": name, **fields}, **seats})
    except Exception as error:  # the environment's module may fail in any way while it is imported
        raise UserError(f"verifiers has no {name!r}: {type(error).__name__}: {error}", setting="env") from error


def _key_variable(key: str | None) -> str:
    """Return the name of an environment variable with the key, which is how the package takes one.

    The package hands no variable of such a name to the programs that it starts.
    """
    if key is None:
        return "MINI_AGENTIC_RL_NO_API_KEY"
    name = f"MINI_AGENTIC_RL_API_KEY_{hashlib.blake2b(key.encode(), digest_size=6).hexdigest().upper()}"
    os.environ[name] = key
    return name
