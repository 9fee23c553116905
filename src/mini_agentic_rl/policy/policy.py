"""The policy: one set of weights that samples and learns in turns.

The engine and the learner share the modules and the torch thread. Whatever changes weights runs through `Policy.run`,
which afterwards invalidates what was cached with older weights. Turn-taking happens in this file and nowhere else:
whole turns by default, `SharedTurns` where sampling runs ahead of learning.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
from transformers import PreTrainedModel

from .engine import Engine, EngineCounters
from .learner import Learner, ValueLearner
from .load import load_model, load_weights, save_weights
from .machine import release_free_memory
from .model import DEFAULT_ADAPTER, PolicyModel
from .settings import EngineSettings, LearnerSettings, ValueSettings
from .torch_thread import TorchThread
from .tree_pass import Scorer

T = TypeVar("T")

_RELEASE_EVERY: Final = 16
"""Learning turns in a row between two releases of the heap's free pages."""


class Policy:
    """A model with an engine, and learners where it is trained."""

    def __init__(
        self,
        model: PolicyModel,
        engine: EngineSettings | None = None,
        thread: TorchThread | None = None,
    ) -> None:
        """
        Args:
            thread: computes with `model`; None makes one.
        """
        self.model = model
        self._thread = thread or TorchThread()
        self.engine = self._make_engine(engine)
        self._turns = SharedTurns(model, self.engine, self._see_weights, self._thread)
        self._seen = dict(model.versions)
        """Version of each adapter that the engine has seen."""
        self._learnt_in_a_row = 0
        """Learning turns in a row without sampling in between."""
        self.is_whole = True
        """False once a learning turn has failed: the weights may then lie between two steps."""

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

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Token ids that end an answer by the model's generation config."""
        config = self.model.base.generation_config
        eos = None if config is None else config.eos_token_id
        return () if eos is None else (eos,) if isinstance(eos, int) else tuple(eos)

    def learner(self, settings: LearnerSettings, adapter: str = DEFAULT_ADAPTER) -> Learner:
        """Return a learner with a fresh optimizer over `adapter`. Use it inside `run` only."""
        learner = Learner(self.model, settings, adapter)
        self.share_weights(adapter)
        return learner

    def value_learner(
        self, settings: LearnerSettings, value: ValueSettings, adapter: str = DEFAULT_ADAPTER
    ) -> ValueLearner:
        """Return a learner with a fresh optimizer over `adapter` and a fresh critic. Use it inside `run` only."""
        learner = ValueLearner(self.model, settings, adapter, value)
        self.share_weights(adapter)
        return learner

    def scorer(self, adapter: str | None, *, max_tokens: int, head_rows: int) -> Scorer:
        """Return a scorer of terms under `adapter`, or the bare model; see `Scorer`. Use it inside `run`."""
        return Scorer(self.model, adapter, max_tokens=max_tokens, head_rows=head_rows)

    def run(self, job: Callable[[], T]) -> T:
        """Run `job` on the torch thread between two steps of the engine, and wait for it.

        Running requests pause meanwhile. If the job changed an adapter's version, they continue with the new weights,
        and no key computed with the old weights is used again.
        """
        return self._thread.call(lambda: self._turn(job))

    async def run_async(self, job: Callable[[], T], *, brief: bool = False) -> T:
        """Await `run`, without blocking the event loop.

        Args:
            brief: True may run the job between two parts of a job that learns with a share. It must not change what
                that job learns.
        """
        return await asyncio.wrap_future(self._thread.submit(lambda: self._turn(job), brief=brief))

    def learn(self, job: Callable[[], T], share: float = 0.0) -> T:
        """Run a job that learns, as `run` does.

        The memory of the key/value cache is freed before, so that sampling and learning never hold memory at the same
        time. With a `share` above 0 it is kept, and so are weights laid out for sampling: sampling continues with this
        share of the torch thread's time (`SharedTurns`).
        """
        return self._thread.call(lambda: self._learning_turn(job, share))

    async def learn_async(self, job: Callable[[], T], share: float = 0.0) -> T:
        """Await `learn`, without blocking the event loop."""
        return await asyncio.wrap_future(self._thread.submit(lambda: self._learning_turn(job, share)))

    def save(self, folder: Path, adapter: str = DEFAULT_ADAPTER) -> None:
        """Write the weights that are trained."""
        self.run(lambda: save_weights(self.model, folder, adapter))

    def load_weights(self, folder: Path, adapter: str = DEFAULT_ADAPTER) -> None:
        """Load weights in place; keys cached with the old weights are not used again."""
        self.run(lambda: self.read_weights(folder, adapter))

    def read_weights(self, folder: Path, adapter: str = DEFAULT_ADAPTER) -> None:
        """Load weights in place, on all ranks those of rank 0. Inside of `run`."""
        load_weights(self.model, folder, adapter)
        self.weights_changed(adapter)
        self.share_weights(adapter)

    def digests(self, adapter: str) -> list[str]:
        """Return a digest of the weights that are trained, of each rank. Inside of `run`."""
        digest = hashlib.sha256()
        for parameter in self.model.trainable(adapter):
            digest.update(parameter.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        ranks = self.model.ranks
        return [digest.hexdigest()] if ranks is None else ranks.gather(digest.hexdigest())

    def share_weights(self, adapter: str) -> None:
        """Copy the weights that are trained from rank 0 to all other ranks. Inside of `run`."""
        if self.model.ranks is not None:
            self.model.ranks.copy_from_first(self.model.trainable(adapter))
            self.weights_changed(adapter)

    def check_agreement(self) -> None:
        """Raise if the ranks' weights differ; does nothing with a single rank. Inside of `run`."""

    def counters(self) -> EngineCounters:
        """Return the work of sampling so far, of all ranks."""
        return replace(self.engine.counters)

    async def watch(self, work: Coroutine[Any, Any, T]) -> T:
        """Await work that needs all ranks; it is cancelled when a rank is lost."""
        return await work

    def submit_turn(self, job: Callable[[], T], *, learning: bool) -> Future[T]:
        """Submit a job to `learn` or `run` without waiting for it."""
        return self._thread.submit(lambda: self._learning_turn(job, 0.0) if learning else self._turn(job))

    def weights_changed(self, adapter: str) -> None:
        """Let the engine sample with the current weights, and invalidate keys of older weights.

        Call it on the torch thread after a change of weights that raised no version; new versions are detected.
        """
        self._seen[adapter] = self.model.versions[adapter]
        self.model.unpack()
        self.engine.weights_changed(adapter)

    def close(self) -> None:
        """Stop sampling and end the torch thread."""
        self._thread.close()

    def _make_engine(self, settings: EngineSettings | None) -> Engine:
        return Engine(self.model, self._thread, settings)

    def _learning_turn(self, job: Callable[[], T], share: float) -> T:
        was_whole, self.is_whole = self.is_whole, False
        if share > 0:
            with self._turns.shared(share):
                try:
                    result = job()
                finally:
                    self._see_weights()
                    release_free_memory()
        else:
            self._learnt_in_a_row = 0 if self.engine.release_cache() else self._learnt_in_a_row + 1
            self.model.unpack()
            if self._learnt_in_a_row % _RELEASE_EVERY == 0:
                release_free_memory()
            result = self._turn(job)
        self.is_whole = was_whole
        return result

    def _turn(self, job: Callable[[], T]) -> T:
        # The job may change the weights, of which sampling would keep using copies.
        self.model.unpack()
        try:
            return job()
        finally:
            # Also after an error: the job may have taken a step before it failed.
            self._see_weights()

    def _see_weights(self) -> None:
        """Let the engine sample with the adapters whose versions have changed."""
        changed = [adapter for adapter, version in self.model.versions.items() if self._seen.get(adapter) != version]
        for adapter in changed:
            self.weights_changed(adapter)


class SharedTurns:
    """Gives sampling a share of the torch thread while a job learns. Used on that thread only.

    By default nothing is sampled until a job that learns has ended. With shared turns the job pauses between the chunks
    of its passes, and the engine steps there until sampling has had its share of the time. After the job's optimizer
    step the engine recomputes keys, and running requests continue, each token under the version that sampled it. Brief
    jobs run in these pauses too, and count as sampling.
    """

    def __init__(
        self,
        model: PolicyModel,
        engine: Engine,
        on_weights: Callable[[], None],
        thread: TorchThread | None = None,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """
        Args:
            engine: samples with `model`, on this thread.
            on_weights: invalidates what was computed with older weights, if they have changed.
            thread: runs brief jobs in the pauses too; None runs none.
            clock: the time in seconds.
        """
        self._model, self._engine, self._on_weights, self._thread = model, engine, on_weights, thread
        self._clock = clock
        self._paused = False
        """True during a pause; pauses within it do nothing."""
        self._rate = 0.0
        """Seconds of sampling for a second of learning."""
        self._owed = 0.0
        """Seconds of sampling that are due."""
        self._since = 0.0
        """Time of the end of the last pause."""

    @contextmanager
    def shared(self, share: float) -> Iterator[None]:
        """Give sampling this share of the time, from 0 to below 1, for the duration of a block that learns."""
        self._rate = share / (1 - share)
        self._owed, self._since = 0.0, self._clock()
        self._model.on_pause = self._pause
        try:
            yield
        finally:
            self._model.on_pause = None

    def _pause(self) -> None:
        """Run brief jobs, and steps of the engine until it has used its share of the time or has nothing to do."""
        if self._paused:
            return
        self._owed += (self._clock() - self._since) * self._rate
        self._on_weights()
        has_brief = self._thread is not None and self._thread.has_brief()
        if has_brief or (self._owed > 0 and self._engine.pending()):
            self._paused = True
            try:
                with self._model.lent_to_sampling():
                    began = self._clock()
                    if self._thread is not None:
                        self._thread.run_brief()
                    self._owed -= self._clock() - began
                    while self._owed > 0 and self._engine.pending():
                        began = self._clock()
                        self._engine.step()
                        self._owed -= self._clock() - began
            finally:
                self._paused = False
        # Unused time is not carried over: learning would wait for a burst of sampling.
        if not self._engine.pending():
            self._owed = min(self._owed, 0.0)
        self._since = self._clock()
