"""The attempt and the agent that an LLM call belongs to, where its URL does not say so.

While an agent runs, its attempt stands in the context of the running task (`calls_of`), in the threads that it starts
(`threads`), and in the environment of the processes that it starts (`rollout_environment`). Every HTTP client of the
process that is about to ask a gateway sends it along (`clients`), as W3C baggage (`baggage`); nobody else is told. A
call that comes from a process which runs rollouts, but from nowhere that names one of them, is marked as such, and the
gateway refuses it: nothing is ever guessed. Inside of `unrecorded` calls belong to no attempt, as those of hooks and
algorithms do.

Everything here is loaded when it is asked for.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
