"""An assistant for GAIA's questions, with local tools; tools such as a web search are plugged in.

`GaiaAgent` is what a trainer runs on the rows of `load_gaia`; `is_right` is the benchmark's score of an answer. The
process that reads an attached file needs none of this, so it is loaded when it is asked for.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
