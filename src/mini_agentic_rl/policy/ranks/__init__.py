"""Several ranks, one policy: each holds the weights, samples its share and learns its share of the trees.

    link.py        messages between rank 0 and another one, with a key, and the news that it has gone
    door.py        rank 0 lets the others in
    team.py        rank 0: turns, commands and answers
    follower.py    the others: a sampler, and learners that do what they are told
    commands.py    what they can be told
    engine.py      rank 0's engine, which hands requests on
    learners.py    rank 0's learners and scorers, which divide their work
    policy.py      rank 0's policy, of all these

`../launch.py` says which rank this process is, `../rank_group.py` adds up the gradients.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
