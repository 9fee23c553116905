"""An agent for GAIA's questions, with local tools; further tools such as a web search are plugged in.

`GaiaAgent` runs on the rows of `load_gaia`; `is_right` is the benchmark's score of an answer.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
