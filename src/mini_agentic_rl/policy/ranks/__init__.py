"""One policy on several ranks: each holds the weights, samples some of the rollouts and learns some of the trees.

    rendezvous.py  rendezvous, and joining the process groups
    leader.py      rank 0's policy, engine, learners and scorers, which send the other ranks their shares
    commands.py    messages between ranks, and rank 0's commands to the others
    follower.py    the other ranks, which execute these commands

`../launch.py` says which rank this process is, `../rank_group.py` adds up the gradients and divides the base.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
