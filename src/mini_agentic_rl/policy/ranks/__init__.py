"""One policy on several ranks: each holds the weights, samples some of the rollouts and learns some of the trees.

torchrun, `accelerate launch` or a script starts the ranks and sets the environment variables that `launched` reads.

    rendezvous.py  rendezvous, process groups, messages between ranks, and loading the model
    leader.py      rank 0's policy, engine, learners and scorers, whose calls the other ranks make too
    follower.py    the other ranks, which make these calls

`../rank_group.py` sums gradients and metrics over the ranks, and shards the base weights.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import PolicyError


@dataclass(frozen=True)
class Launch:
    """Rank and node of this process."""

    rank: int
    """Global rank; rank 0 runs the loop, the others follow it."""
    size: int
    """Number of ranks, 2 or more."""
    local_rank: int = 0
    """Rank on its node."""
    local_size: int = 1
    """Number of ranks on its node."""
    address: str = "127.0.0.1"
    """Host of rank 0, as the others reach it."""
    restarts: int = 0
    """Number of times that the launcher has restarted all ranks."""

    @property
    def follows(self) -> bool:
        """True for all ranks but rank 0."""
        return self.rank > 0


def launched(environment: Mapping[str, str] = os.environ) -> Launch | None:
    """Return the launch of this process if it is one of several ranks, else None.

    Raises:
        PolicyError: the variables of the launcher contradict each other, or one is missing.
    """

    def number(name: str, default: int) -> int:
        value = environment.get(name) or str(default)
        try:
            return int(value)
        except ValueError:
            raise PolicyError(f"{name}={value!r} is no number: start the ranks with torchrun, or unset it") from None

    size = number("WORLD_SIZE", 1)
    if size < 2:
        return None
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if not environment.get(name)]
    if missing:
        raise PolicyError(
            f"WORLD_SIZE={size}, but {', '.join(missing)} is not set: start the ranks with torchrun, or unset it"
        )
    launch = Launch(
        rank=number("RANK", 0),
        size=size,
        local_rank=number("LOCAL_RANK", 0),
        local_size=number("LOCAL_WORLD_SIZE", 1),
        address=environment["MASTER_ADDR"],
        restarts=number("TORCHELASTIC_RESTART_COUNT", 0),
    )
    if not (0 <= launch.rank < size and 0 <= launch.local_rank < launch.local_size <= size):
        raise PolicyError(
            f"RANK={launch.rank} of WORLD_SIZE={size}, LOCAL_RANK={launch.local_rank} of "
            f"LOCAL_WORLD_SIZE={launch.local_size}: no such rank"
        )
    return launch


def restarted(environment: Mapping[str, str] = os.environ) -> bool:
    """Return True if the launcher has restarted all ranks: they resume from the last checkpoint."""
    launch = launched(environment)
    return launch is not None and launch.restarts > 0
