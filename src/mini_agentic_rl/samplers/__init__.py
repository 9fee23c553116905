"""Samplers of tokens for the gateway: ids in, ids out, no text.

`Sampler` is the protocol. `PolicySampler` is the policy of this process behind it; `SamplerPool` (`pool/`) is servers
of vLLM or SGLang, each spoken to by its `Wire` (`wire/`). `make_sampler` makes what `SamplerSettings` ask for, and
starts servers where none are given (`started.py`; on the nodes of a cluster, `on_ray.py`). `parity.py` compares what is
sampled with what is learnt.

Everything here is loaded when it is asked for.
"""

from ..compat import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
