"""The attempt and the agent of an LLM call whose URL does not name them.

While an agent runs, its attempt is a context variable of the running task (`calls_of`) and of the threads that it
starts, and an environment variable of the processes that it starts (`rollout_environment`). The HTTP clients of the
process send it to gateways, and only to gateways, as W3C baggage (`clients`). A call without an attempt from a process
that runs rollouts is marked as unnamed, and the gateway refuses it: no attempt is guessed. Calls inside of `unrecorded`
belong to no attempt, like those of hooks and algorithms.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
