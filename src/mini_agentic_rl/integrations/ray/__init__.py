"""Runners as actors of a Ray cluster; the algorithm, and the store's server, where the training was started.

The store is the only channel between them. `strategy.py` puts a run together, `runners.py` keeps as many runners as
there is work for, and `cluster.py` has the actor that runs on a node. Only `cluster.py` imports Ray.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
