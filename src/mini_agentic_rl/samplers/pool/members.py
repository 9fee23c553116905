"""The servers of a pool: whose turn it is, who is taken out, and who is brought back."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

from ...errors import UserError
from ...http import OverloadedError
from ..wire import ReplicaLostError, RequestRefusedError
from .probing import Probing, refused
from .publications import Publication, Publications
from .replica import Replica

logger = logging.getLogger(__name__)

_REMEMBERED: Final = 8192
"""Places of rollouts that are kept in mind."""
_LOOK_SECONDS: Final = 2.0
"""Between two looks at a server."""
_MISSED: Final = 2
"""Looks in vain after which a server is taken out."""


class Members:
    """Used from the pool's event loop only.

    Args:
        replicas: the servers.
        publications: what each of them has to have before it gets requests.
        probing: compares them with the learner.
        timeout: seconds to wait for a server where none is well.
        silence: see `Replica.sample`.
        rank: of the adapters; None where all weights are trained.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        publications: Publications,
        probing: Probing,
        *,
        timeout: float,
        silence: float,
        rank: int | None,
    ) -> None:
        self.replicas = tuple(replicas)
        self.silence = silence
        self.lock = asyncio.Lock()
        """Held while the weights of servers change, so that none is brought up to a version that is past."""
        self.failure: UserError | None = None
        """Refusal of a server that came back; it ends the run."""
        self._publications = publications
        self._probing = probing
        self._timeout = timeout
        self._rank = rank
        self._places: OrderedDict[str, Replica] = OrderedDict()
        self._changed = asyncio.Event()

    @property
    def well(self) -> list[Replica]:
        """Servers that get requests."""
        return [replica for replica in self.replicas if replica.well]

    async def wait_for_one(self) -> None:
        """Return once a server is well.

        Raises:
            OverloadedError: none is, for as long as may be waited.
        """
        end = asyncio.get_running_loop().time() + self._timeout
        while not self.well:
            left = end - asyncio.get_running_loop().time()
            try:
                await asyncio.wait_for(self._changed.wait(), left)
            except asyncio.TimeoutError:
                raise OverloadedError("No server that samples is well. Try again shortly.") from None

    async def choose(self, affinity: str, publication: Publication | None) -> Replica:
        """Return a server that has the weights: where the rollout was before, else the least busy one.

        Raises:
            OverloadedError: no server is well, for as long as may be waited.
        """
        while True:
            await self.wait_for_one()
            name = "" if publication is None else publication.name
            ready = [replica for replica in self.well if not name or name in replica.loaded]
            if ready:
                break
            assert publication is not None  # a server without the weights of a request was asked for some
            await self.bring(min(self.well, key=lambda replica: replica.under_way), [publication])
        place = self._places.get(affinity) if affinity else None
        if place is None or place not in ready:
            place = min(ready, key=lambda replica: replica.under_way)
        if affinity:
            self._places[affinity] = place
            self._places.move_to_end(affinity)
            if len(self._places) > _REMEMBERED:
                self._places.popitem(last=False)
        return place

    def lose(self, replica: Replica, reason: object) -> None:
        """Take a server out."""
        replica.lose(str(reason))

    async def bring(self, replica: Replica, publications: Sequence[Publication], *, probed: bool = False) -> bool:
        """Load weights onto a server, and compare those that are new with the learner; return whether it has them.

        It is taken out where it is lost meanwhile.

        Args:
            probed: whether these weights are those that the learner has at the moment.

        Raises:
            UserError: the server refuses them, or computes something else with them.
        """
        try:
            for publication in publications:
                if not publication.name:
                    await replica.wire.load_weights(publication.folder)
                elif publication.name not in replica.loaded:
                    await replica.wire.load_adapter(publication.name, publication.folder)
                    replica.loaded.add(publication.name)
                if probed:
                    await self._probing.check(replica, publication, self.silence)
        except ReplicaLostError as error:
            self.lose(replica, error)
            return False
        except RequestRefusedError as error:
            raise refused(replica.url, error, self._rank) from error
        return True

    async def unload(self, replica: Replica, names: Iterable[str]) -> None:
        """Unload those names from a server that are of this run, or of one that was killed.

        Raises:
            ReplicaLostError: the server was lost on the way.
            RequestRefusedError: it refuses.
        """
        for name in names:
            if self._publications.is_known(name):
                await replica.wire.unload_adapter(name)

    async def forget(self, publication: Publication) -> None:
        """Unload weights everywhere."""
        for replica in self.replicas:
            if publication.name not in replica.loaded:
                continue
            replica.loaded.discard(publication.name)
            try:
                await replica.wire.unload_adapter(publication.name)
            except (ReplicaLostError, RequestRefusedError) as error:
                logger.info("%s has not unloaded %s: %s", replica.url, publication.name, error)

    async def watch(self, replica: Replica) -> None:
        """Look after a server until cancelled: take it out when it is ill, bring it back when it is well again."""
        missed = 0
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                await replica.wire.health()
            except (ReplicaLostError, RequestRefusedError) as error:
                missed += 1
                if replica.well and missed >= _MISSED:
                    self.lose(replica, error)
                if not replica.well and replica.server is not None:
                    await self._restart(replica)
                continue
            missed = 0
            if not replica.well:
                await self._bring_back(replica)

    async def _restart(self, replica: Replica) -> None:
        assert replica.server is not None
        try:
            await asyncio.to_thread(replica.server.restart)
        except UserError as error:
            self.failure = self.failure or error
            return
        if replica.server.url != replica.url:
            logger.info("the sampler %s is now at %s", replica.url, replica.server.url)
            replica.move(replica.server.url)

    async def _bring_back(self, replica: Replica) -> None:
        """Bring a server up to the current versions before it gets requests again."""
        async with self.lock:
            try:
                replica.facts = await replica.wire.facts()
                there = replica.facts.adapters
                replica.loaded = {one.name for one in self._publications.in_use() if one.name in there}
                await self.unload(replica, there - replica.loaded)
                replica.well = await self.bring(replica, list(self._publications.current.values()), probed=True)
            except (ReplicaLostError, RequestRefusedError) as error:
                logger.info("the sampler %s is not back yet: %s", replica.url, error)
            except UserError as error:
                self.failure = self.failure or error
                logger.error("the sampler %s stays out: %s", replica.url, error)
        if replica.well:
            versions = ", ".join(str(one.version) for one in self._publications.current.values())
            logger.warning("the sampler %s is back, at version %s", replica.url, versions or "0")
            self.tell()

    def tell(self) -> None:
        """Wake those that wait for a server."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
