"""Sessions: conversations of agents in use, recorded by a gateway, judged later, and learnt from.

A session is a rollout that was not queued: its agent runs elsewhere. `SessionBook` stores sessions in any store, the
gateway serves it over HTTP, and `Sessions` is the client. A reward is a span of the session (`record`), as durable as
the conversation.

The learner scores ended sessions without a reward (`job`), reads and compares the judged sessions (`waiting`),
claims those of a step, takes it, publishes the weights and marks the sessions (`learner`).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
