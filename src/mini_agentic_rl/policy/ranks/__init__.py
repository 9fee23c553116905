"""One policy on several ranks: each holds the weights, samples some of the rollouts and learns some of the trees.

    rendezvous.py  rendezvous, joining the process groups, and loading the model
    leader.py      rank 0's policy, engine, learners and scorers, whose calls the other ranks make too
    channel.py     messages between rank 0 and another rank
    follower.py    the other ranks, which make these calls

`../launch.py` reads the number of this process's rank; `../rank_group.py` sums gradients and metrics over the ranks,
and shards the base weights.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
