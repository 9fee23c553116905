"""Answers of a given form: what a request asks for as a grammar, and the grammar as a limit on tokens (llguidance).

The process that tries grammars (`trial_worker`) needs little of the gateway; what else there is is loaded when it is
asked for.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
