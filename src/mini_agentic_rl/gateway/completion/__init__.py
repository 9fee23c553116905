"""The life of one chat request, a file for each thing that happens to it.

`prepare`: checked against what is served, rendered, constrained; `sample`: handed to the sampler; `read`: the tokens as
text, thought and tool calls; `record`: a span with the exact tokens in the store; `remember`: what the next call of the
conversation continues from, and in `forks` why one does not; `answer`: told to the client whole or as a stream.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
