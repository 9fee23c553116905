"""APO, automatic prompt optimisation: beam search over textual gradients.

apo          `APO`, the algorithm and its result
search       one run: rounds of trial, criticism, rewriting and selection
state        the prompts with their scores, as stored in checkpoints
trials       rollouts of prompts, and their transcripts for the critic
critic       the model that criticises and rewrites; validation of rewritten prompts
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
