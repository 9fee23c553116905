"""Rank 0's policy: it samples and learns with all ranks, and looks like one that is alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from transformers import PreTrainedModel

from ...tokens import CompletionRecord, TokenTree, pack
from ..engine import Engine, EngineCounters
from ..errors import PolicyError
from ..launch import Launch
from ..learner import Learner, ValueLearner
from ..load import load_model, resolve_device
from ..model import DEFAULT_ADAPTER, PolicyModel
from ..policy import Policy
from ..rank_group import RankGroup
from ..settings import EngineSettings, LearnerSettings, RankSettings, ValueSettings
from ..torch_thread import TorchThread
from ..tree_pass import Scorer
from .door import let_in, meeting_place
from .engine import SpreadEngine
from .follower import follow, join_group
from .learners import LeadingLearner, LeadingScorer, LeadingValueLearner
from .team import Team

T = TypeVar("T")

_MEET_SECONDS = 300.0
"""Seconds in which all ranks have to come: they start together, and import what this one has imported."""


class RankedPolicy(Policy):
    """The policy of rank 0, with a team. `lead` makes one."""

    def __init__(self, team: Team, model: PolicyModel, engine: EngineSettings | None, thread: TorchThread) -> None:
        self._team = team
        super().__init__(model, engine, thread)

    @classmethod
    def lead(
        cls,
        launch: Launch,
        ranks: RankSettings,
        about: Mapping[str, Any],
        model: str | PreTrainedModel,
        *,
        engine: EngineSettings | None = None,
        log: Callable[[int, str], None] = lambda rank, line: None,
        **options: Any,
    ) -> RankedPolicy:
        """Let the other ranks in, load the model as they do, and wait for them.

        Args:
            about: the configuration, which has to be that of every rank.
            log: told of what other ranks log, with their numbers.
            options: those of `load_model`.

        Raises:
            RankLostError: a rank has not come, or has gone.
            PolicyError: one was started with other settings, or the model cannot be had.
        """
        if engine is not None and engine.sampler_device is not None:
            raise PolicyError(
                "each rank samples on the device that it learns on: leave this out, or start one rank",
                setting="sampler_device",
            )
        device = device_of(launch, options.get("device", "auto"))
        thread = TorchThread()
        team: Team | None = None
        try:
            store = meeting_place(launch, ranks.rank_timeout)
            team = Team(launch, let_in(launch, store, about, ranks.rank_timeout, _MEET_SECONDS), log)
            team.tell(("join",))
            team.group = thread.call(lambda: join_group(launch, store, ranks, device))
            among = team.group if ranks.shard else None
            loaded = thread.call(lambda: _loaded(model, {**options, "device": str(device)}, among))
            team.shards = loaded.shards
            team.wait_until_ready()
            return cls(team, loaded, engine, thread)
        except BaseException:
            if team is not None:
                team.close()
            thread.close()
            raise

    def learner(self, settings: LearnerSettings, adapter: str = DEFAULT_ADAPTER) -> Learner:
        return LeadingLearner(self._team, self.model, settings, adapter)

    def value_learner(
        self, settings: LearnerSettings, value: ValueSettings, adapter: str = DEFAULT_ADAPTER
    ) -> ValueLearner:
        return LeadingValueLearner(self._team, self.model, settings, adapter, value=value)

    def scorer(self, adapter: str | None, *, max_tokens: int, head_rows: int) -> Scorer:
        return LeadingScorer(self._team, self.model, adapter, max_tokens, head_rows)

    def read_weights(self, folder: Path, adapter: str = DEFAULT_ADAPTER) -> None:
        super().read_weights(folder, adapter)
        self._team.copy_weights(self.model, adapter)

    def check_agreement(self) -> None:
        """Refuse weights that are not those of all ranks. In a turn.

        Raises:
            PolicyError: a rank has others.
        """
        if self._team.lost.done():
            return
        for adapter in self.model.adapters:
            with self._team.ask("digest", [(adapter,)] * self._team.others) as answers:
                own = self.digest(adapter)
            for rank, digest in enumerate(answers.values, 1):
                if digest != own:
                    raise PolicyError(
                        f"rank {rank} has other weights of {adapter!r} than rank 0: do all ranks have the same kind of "
                        "device and the same torch?"
                    )

    def counters(self) -> EngineCounters:
        own = super().counters()
        for counters in self._team.counters:
            for name, count in vars(counters).items():
                setattr(own, name, getattr(own, name) + count)
        return own

    async def watch(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.ensure_future(work)
        lost = asyncio.wrap_future(self._team.lost)
        try:
            both: set[asyncio.Future[Any]] = {task, lost}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait({task})
            raise
        finally:
            if not lost.done():
                lost.cancel()
        if not task.done():
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task
        if self._team.lost.done():
            self._team.check()
        return await task

    def close(self) -> None:
        """Let the other ranks go, stop sampling and end the torch thread."""
        is_whole = not self._team.lost.done()
        self._team.close()
        group = self._team.group
        if group is not None and is_whole:
            self._thread.call(group.leave)
        super().close()

    def _make_engine(self, model: PolicyModel, settings: EngineSettings | None) -> Engine:
        return SpreadEngine(self._team, model, self._thread, settings)

    def _learning_turn(self, job: Callable[[], T], share: float) -> T:
        # The other ranks sample nothing in a turn, so this one does not either, whatever its share would be.
        with self._team.turn(learning=True):
            return super()._learning_turn(job, 0.0)

    def _turn(self, job: Callable[[], T]) -> T:
        with self._team.turn(learning=False):
            return super()._turn(job)


def follow_rank_0(
    launch: Launch,
    ranks: RankSettings,
    about: Mapping[str, Any],
    model: str | PreTrainedModel,
    *,
    engine: EngineSettings | None = None,
    **options: Any,
) -> None:
    """Follow `RankedPolicy.lead`, which was given the same, on another rank; returns at the end of the run.

    Raises:
        RankLostError: rank 0 has gone.
        PolicyError: the model cannot be had.
    """
    device = device_of(launch, options.get("device", "auto"))

    def load(thread: TorchThread, group: RankGroup) -> Policy:
        among = group if ranks.shard else None
        return Policy(thread.call(lambda: _loaded(model, {**options, "device": str(device)}, among)), engine, thread)

    follow(launch, ranks, about, load, device)


def _loaded(model: str | PreTrainedModel, options: Mapping[str, Any], among: RankGroup | None) -> PolicyModel:
    """Return the model, in parts if it is shared `among` ranks: all of them have then computed with it once."""
    found = load_model(model, **options, shard_over=among)
    if found.shards is not None:
        tree = TokenTree()
        tree.insert(CompletionRecord(np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.float32)))
        Scorer(found, None, max_tokens=1, head_rows=1).logprobs(pack([tree]))
    return found


def device_of(launch: Launch, device: str) -> torch.device:
    """Return the device of one rank: of several cards of a node each rank has its own.

    Raises:
        PolicyError: there are fewer cards than ranks.
    """
    found = resolve_device(device)
    if found.type != "cuda":
        return found
    if found.index is not None and launch.local_size > 1:
        raise PolicyError(f"{device} is one card, for {launch.local_size} ranks: use `device=cuda`", setting="device")
    cards = torch.cuda.device_count()
    if launch.local_size > cards:
        raise PolicyError(
            f"{launch.local_size} ranks on a node with {cards} cards: start as many ranks as there are cards, or use "
            "`device=cpu`",
            setting="device",
        )
    return torch.device("cuda", launch.local_rank)
