"""A pool of token servers as one sampler: their weights, their failures, and whose turn it is.

    ServedPolicy.publish ─► SamplerPool.publish ─► Publications ─► every Replica: load, probe, then requests
    gateway ─► SamplerPool.complete ─► Answers ─► Replica ─► Wire ─► server
                                          └── another Replica, from the tokens so far, where one is lost

All of it runs on an event loop of its own thread, so that neither the gateway nor the loop of a training waits for it.
Loaded when it is asked for.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
