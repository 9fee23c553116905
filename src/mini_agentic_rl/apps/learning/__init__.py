"""Sessions: conversations of agents in use, recorded by a gateway, judged later, and learnt from.

A session is a rollout that nobody queued: its agent lives elsewhere. `SessionBook` keeps sessions in any store, the
gateway serves it over HTTP, and `Sessions` is the client of that. A judgement is a span of the session, so that it is
as durable as the conversation; `record` reads them back.

Judged sessions become groups, and groups become new weights: judge the sessions that nobody judged (`judging`), read
and compare the judged ones (`waiting`), claim them, take an optimizer step, publish, mark (`learner`).

Everything here is loaded when it is asked for.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
