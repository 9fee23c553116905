"""APO, automatic prompt optimisation: beam search over textual gradients.

apo          `APO`, the algorithm: what it is bound to, and its result
search       one run: rounds of trying, criticising, rewriting and choosing
state        the prompts with their scores, as a checkpoint holds them
trials       rollouts of prompts, and what the critic is shown of them
critic       the model that criticises and rewrites; the check that a rewritten prompt can be used
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
