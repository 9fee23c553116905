"""One policy on several ranks: each holds the weights, samples some of the rollouts and learns some of the trees.

    rendezvous.py  rendezvous, joining the process groups, and loading the model
    leader.py      rank 0's policy, engine, learners and scorers, whose calls the other ranks make too
    channel.py     messages between rank 0 and another rank
    follower.py    the other ranks, which make these calls

`../launch.py` says which rank this process is, `../rank_group.py` adds up what ranks compute and divides the base.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
