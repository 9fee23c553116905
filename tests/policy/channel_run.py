"""Two ranks that exchange messages: `channel_run.py talk` ends them in order, `channel_run.py stop` halts rank 1."""

from __future__ import annotations

import os
import signal
import sys
import threading

import torch

from mini_agentic_rl.policy import RankSettings, launched
from mini_agentic_rl.policy.ranks.commands import Channel
from mini_agentic_rl.policy.ranks.rendezvous import join_group, meet

COUNT = 1000


def main() -> None:
    launch = launched()
    settings = RankSettings(rank_timeout=20.0 if sys.argv[1] == "talk" else 4.0)
    group = join_group(launch, meet(launch, settings, {}), settings, torch.device("cpu"))
    received, lost = [], []
    all_received, ended = threading.Event(), threading.Event()

    def on_message(message):
        received.append(message)
        if len(received) == COUNT:
            all_received.set()

    channel = Channel(1 - launch.rank, settings.rank_timeout)
    channel.start(on_message, lambda reason: (lost.append(reason), ended.set()))
    if sys.argv[1] == "stop":
        if launch.rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        assert ended.wait(60)
        print(*lost, flush=True)
        os._exit(0)
    for number in range(COUNT):
        channel.send((number, b"x" * number))
    assert all_received.wait(60)
    assert [number for number, _ in received] == list(range(COUNT))
    assert [len(text) for _, text in received] == list(range(COUNT))
    assert channel.close()
    assert lost in ([], ["has closed its connection"])  # of the rank that closes later
    group.leave()


if __name__ == "__main__":
    main()
