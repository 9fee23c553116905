"""Teachers: what a step's rollouts are compared with token by token. One file each, and what makes them of settings.

    local.py       weights that are here: the bare model, an adapter, another model
    server.py      a server that tells the log-probabilities of a prompt, as vLLM does
    privileged.py  the policy itself, with more in its context

Names are loaded when they are asked for: settings need no torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
