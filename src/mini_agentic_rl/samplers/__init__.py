"""Samplers of tokens for the gateway: ids in, ids out, no text.

    base.py            the `Sampler` protocol and its settings
    policy_sampler.py  `PolicySampler`: the engine of this process; streams of tokens to the event loop
    pool.py            `SamplerPool`: servers of vLLM or SGLang as one sampler; `make_sampler`
    replica.py         one of these servers, and the comparison of its numbers with the learner's
    clients.py         the HTTP protocols of these servers
    vllm_process.py    starts vLLM servers on this computer

Everything here is loaded when it is first used.
"""

from ..compat import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
