"""The policy: one set of weights that samples and learns in turns.

The engine and the learner share the modules and the torch thread. Whatever changes weights runs through `run`, which
afterwards invalidates what was cached with older ones: that turn-taking happens here and nowhere else.
"""

from __future__ import annotations

import asyncio
import ctypes
import hashlib
import platform
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from transformers import PreTrainedModel

from .engine import Engine, EngineCounters
from .learner import Learner
from .load import load_model, load_weights, save_weights
from .model import DEFAULT_ADAPTER, PolicyModel
from .settings import EngineSettings, LearnerSettings, ValueSettings
from .torch_thread import TorchThread
from .value_learner import ValueLearner

T = TypeVar("T")


class Policy:
    """A model with an engine, and learners where it is trained."""

    def __init__(
        self, model: PolicyModel, engine: EngineSettings | None = None, thread: TorchThread | None = None
    ) -> None:
        self.model = model
        self._thread = thread or TorchThread()
        self.engine = self._make_engine(engine)
        self.is_whole = True
        """False once a learning turn has failed: its steps may be half done, and its weights belong to no step."""

    @classmethod
    def load(cls, model: str | PreTrainedModel, *, engine: EngineSettings | None = None, **options: Any) -> Policy:
        """Load a model on the torch thread, with the options of `load_model`, and make a policy of it."""
        thread = TorchThread()
        try:
            return cls(thread.call(lambda: load_model(model, **options)), engine, thread)
        except BaseException:
            thread.close()
            raise

    @property
    def version(self) -> int:
        """Optimizer steps behind the adapter that is trained; of several, the first."""
        return self.model.version(self.model.adapters[0])

    def learner(self, settings: LearnerSettings, adapter: str = DEFAULT_ADAPTER) -> Learner:
        """Return a learner with a fresh optimizer over `adapter`. Use it inside `run` only."""
        return Learner(self.model, settings, adapter)

    def value_learner(
        self, settings: LearnerSettings, value: ValueSettings, adapter: str = DEFAULT_ADAPTER
    ) -> ValueLearner:
        """Return a learner with a fresh optimizer over `adapter` and a fresh critic. Use it inside `run` only."""
        return ValueLearner(self.model, settings, adapter, value)

    def run(self, job: Callable[[], T]) -> T:
        """Run `job` on the torch thread between two steps of the engine, and wait for it.

        Requests under way are held meanwhile; where the job changed an adapter's version they go on with the new
        weights, and no key computed with the old ones is used again.
        """
        return self._thread.call(lambda: self._turn(job))

    async def run_async(self, job: Callable[[], T]) -> T:
        """Await `run`, without blocking the event loop."""
        return await asyncio.wrap_future(self.submit_turn(job, learning=False))

    def learn(self, job: Callable[[], T]) -> T:
        """Run a job that learns, as `run` does.

        The memory of the key/value cache is given back before, so that sampling's memory and learning's are never held
        together.
        """
        return self._thread.call(lambda: self._learning_turn(job))

    async def learn_async(self, job: Callable[[], T]) -> T:
        """Await `learn`, without blocking the event loop."""
        return await asyncio.wrap_future(self.submit_turn(job, learning=True))

    def save(self, folder: Path, adapter: str = DEFAULT_ADAPTER) -> None:
        """Write the weights that are trained."""
        self.run(lambda: save_weights(self.model, folder, adapter))

    def load_weights(self, folder: Path, adapter: str = DEFAULT_ADAPTER) -> None:
        """Read weights back in place; what was cached with the old ones is not used again."""

        self.run(lambda: self.read_weights(folder, adapter))

    def read_weights(self, folder: Path, adapter: str = DEFAULT_ADAPTER) -> None:
        """Do what `load_weights` does inside of `run`."""
        load_weights(self.model, folder, adapter)
        self.engine.weights_changed(adapter)

    def digest(self, adapter: str = DEFAULT_ADAPTER) -> str:
        """Return a digest of the weights that are trained. Inside of `run`."""
        found = hashlib.sha256()
        for parameter in self.model.trainable(adapter):
            found.update(parameter.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        return found.hexdigest()

    def check_agreement(self) -> None:
        """Do nothing: one rank always agrees with itself. Inside of `run`."""

    def counters(self) -> EngineCounters:
        """Return the work of sampling so far, of all ranks."""
        return replace(self.engine.counters)

    async def watch(self, work: Coroutine[Any, Any, T]) -> T:
        """Await work that needs the whole policy; where a rank of it goes, cancel it."""
        return await work

    def submit_turn(self, job: Callable[[], T], *, learning: bool) -> Future[T]:
        """Do what `learn`, or `run`, does, without waiting for it."""
        return self._thread.submit(lambda: self._learning_turn(job) if learning else self._turn(job))

    def close(self) -> None:
        """Stop sampling and end the torch thread."""
        self._thread.close()

    def _make_engine(self, settings: EngineSettings | None) -> Engine:
        return Engine(self.model, self._thread, settings)

    def _learning_turn(self, job: Callable[[], T]) -> T:
        self.engine.release_cache()
        self.model.unpack()
        release_free_memory()
        was_whole, self.is_whole = self.is_whole, False
        result = self._turn(job)
        self.is_whole = was_whole
        return result

    def _turn(self, job: Callable[[], T]) -> T:
        before = dict(self.model.versions)
        # The job may change weights, and copies of them would go on sampling with the old ones.
        self.model.unpack()
        try:
            return job()
        finally:
            # Also after an error: a job may have stepped before it failed.
            for adapter, version in self.model.versions.items():
                if before.get(adapter) != version:
                    self.engine.weights_changed(adapter)
                    release_free_memory()


def release_free_memory() -> None:
    """Hand the heap's free pages back to the system; without glibc do nothing.

    glibc keeps them otherwise, and buffers of ever different sizes make the heap grow by gigabytes over a run.
    """
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
