"""Rendezvous of the ranks: the launcher's TCPStore, then two process groups.

store          the launcher's TCPStore: each rank writes its configuration, and rank 0 starts or refuses all
process group  gloo between all ranks: messages of sampling, each followed within `rank_timeout` by the next one
RankGroup      a second group, with NCCL between cards: commands, shards, gradients
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from ..errors import PolicyError, first_line
from ..launch import Launch
from ..load import resolve_device
from ..machine import take_share
from ..rank_group import RankGroup
from ..settings import RankSettings

_MEET_SECONDS: Final = 300.0
"""Seconds within which all ranks have to arrive."""
_POLL_SECONDS: Final = 0.25

_runs = itertools.count()


class RankLostError(PolicyError):
    """Report that a rank is lost, so that the run cannot continue."""


def meet(
    launch: Launch,
    settings: RankSettings,
    configuration: Mapping[str, Any],
    stopped: Callable[[], bool] = lambda: False,
) -> Store | None:
    """Wait until all ranks have arrived; return the store of the run, or None if `stopped` was true (ranks 1, 2 …).

    Args:
        configuration: of the run; it has to be the same on every rank.

    Raises:
        RankLostError: rank 0 cannot be reached, or a rank has not arrived.
        PolicyError: a rank was started with another configuration.
    """
    try:
        limit = timedelta(seconds=settings.rank_timeout)
        store, _, _ = next(rendezvous("env://", launch.rank, launch.size, timeout=limit))
    except Exception as error:  # torch raises errors of several kinds
        raise RankLostError(
            f"the ranks cannot meet at {launch.address} (`MASTER_ADDR`, `MASTER_PORT`): {first_line(error)}"
        ) from error
    store = PrefixStore(f"run_{next(_runs)}", store)
    if launch.follows:
        return store if _wait_for_start(launch, store, configuration, stopped) else None
    _wait_for_ranks(launch, store, configuration)
    return store


def _wait_for_ranks(launch: Launch, store: Store, configuration: Mapping[str, Any]) -> None:
    others = range(1, launch.size)
    try:
        store.wait([f"rank_{rank}" for rank in others], timedelta(seconds=_MEET_SECONDS))
    except Exception as error:  # torch raises errors of several kinds
        missing = ", ".join(str(rank) for rank in others if not store.check([f"rank_{rank}"]))
        raise RankLostError(
            f"rank {missing} of {launch.size} has not arrived within {_MEET_SECONDS:g} seconds"
        ) from error
    refusal = ""
    here = _flat(json.loads(json.dumps(configuration, default=str)))
    for rank in others:
        there = _flat(json.loads(store.get(f"rank_{rank}")))
        names = sorted(name for name in here.keys() | there.keys() if here.get(name) != there.get(name))
        if names:
            refusal = f"rank {rank} was started with other settings: {', '.join(names)}; give all ranks the same"
            break
    store.set("start", refusal)
    if refusal:
        raise PolicyError(refusal)


def _wait_for_start(
    launch: Launch, store: Store, configuration: Mapping[str, Any], stopped: Callable[[], bool]
) -> bool:
    try:
        store.set(f"rank_{launch.rank}", json.dumps(configuration, default=str))
        while not store.check(["start"]):
            if stopped():
                return False
            time.sleep(_POLL_SECONDS)
        refusal = store.get("start").decode()
    except Exception as error:  # rank 0 has ended; torch raises errors of several kinds
        raise RankLostError(f"rank 0 ended before the run began ({first_line(error)})") from error
    if refusal:
        raise PolicyError(refusal)
    return True


def join_group(launch: Launch, store: Store, settings: RankSettings, device: torch.device) -> RankGroup:
    """Join the process groups of a run, on the torch thread, which gets its share of the cores.

    Raises:
        RankLostError: a rank cannot be reached.
    """
    take_share(launch.local_size)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if launch.on_one_node:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    try:
        dist.init_process_group(
            "gloo",
            store=store,
            rank=launch.rank,
            world_size=launch.size,
            timeout=timedelta(seconds=settings.rank_timeout),
        )
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        group = dist.new_group(backend=backend, timeout=timedelta(seconds=settings.group_seconds))
    except (RuntimeError, ValueError) as error:
        raise RankLostError(
            f"the ranks cannot reach each other (`GLOO_SOCKET_IFNAME` names the network interface that gloo uses): "
            f"{first_line(error)}"
        ) from error
    return RankGroup(launch.rank, launch.size, device, group)


def device_of(launch: Launch, device: str) -> torch.device:
    """Return the device of a rank: on a node with several GPUs, each rank has its own.

    Raises:
        PolicyError: there are fewer GPUs than ranks.
    """
    chosen = resolve_device(device)
    if chosen.type != "cuda":
        return chosen
    if chosen.index is not None and launch.local_size > 1:
        raise PolicyError(f"{device} is one GPU, for {launch.local_size} ranks: use `device=cuda`", setting="device")
    gpus = torch.cuda.device_count()
    if launch.local_size > gpus:
        raise PolicyError(
            f"{launch.local_size} ranks on a node with {gpus} GPUs: start as many ranks as there are GPUs, or use "
            "`device=cpu`",
            setting="device",
        )
    return torch.device("cuda", launch.local_rank)


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    """Return nested settings as a flat mapping with dotted names."""
    if not isinstance(value, dict):
        return {name: value}
    prefix = f"{name}." if name else ""
    return {path: leaf for key, each in value.items() for path, leaf in _flat(each, f"{prefix}{key}").items()}
