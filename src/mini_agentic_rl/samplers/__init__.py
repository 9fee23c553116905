"""Samplers of tokens for the gateway: ids in, ids out, no text.

`Sampler` is the protocol; `PolicySampler`, loaded when it is asked for, is the policy of this process behind it.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
