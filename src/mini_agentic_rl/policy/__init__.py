"""The policy: one set of weights that samples and learns. It knows only token ids; torch is imported only here.

Sampling: `policy.py` gives sampling and learning turns on the one torch thread (`torch_thread.py`). `engine.py` takes
requests and computes forward passes, each planned by `scheduler.py` over the blocks of `kv_cache.py`, laid out by
`step_batch.py` (on a GPU by `static_decoding.py`), computed by `model.py`, and drawn from by `sampler.py`.

Learning: `learner.py` takes packed trees and a loss (`loss.py`). `tree_pass.py` runs the trees in chunks,
`tree_attention.py` is their attention, and `head.py` turns hidden states into log-probabilities.

`load.py` turns a name into a `PolicyModel`. `import mini_agentic_rl.policy` is light: what needs torch is loaded when
it is used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
