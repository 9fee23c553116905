"""Several ranks, one policy: each holds the weights, samples its share and learns its share of the trees.

    rendezvous.py  the ranks meet and join the process groups
    channel.py     messages between rank 0 and each other rank
    leader.py      rank 0's policy, engine, learners and scorers, which give the other ranks their shares
    commands.py    rank 0's commands to the other ranks
    follower.py    the other ranks, which do them

`../launch.py` says which rank this process is, `../rank_group.py` adds up the gradients.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
