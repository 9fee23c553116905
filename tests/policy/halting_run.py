"""Two ranks of which rank 1 halts once they are connected."""

from __future__ import annotations

import os
import signal

import torch

from mini_agentic_rl.policy import RankSettings, launched
from mini_agentic_rl.policy.ranks.channel import Channel
from mini_agentic_rl.policy.ranks.rendezvous import RankLostError, join_group, meet


def main() -> None:
    launch, settings = launched(), RankSettings(rank_timeout=1.5)
    join_group(launch, meet(launch, settings, {}), settings, torch.device("cpu"))
    channel = Channel(1 - launch.rank, settings.rank_timeout)
    if launch.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    try:
        list(channel.messages())
    except RankLostError as error:
        print(error, flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
