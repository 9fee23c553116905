"""APO, automatic prompt optimisation: beam search over textual gradients.

apo          `APO`, the algorithm and its result
search       one run: rounds of trial, criticism, rewriting and selection; transcripts of rollouts for the critic
state        the settings, and the prompts with their scores, as stored in checkpoints
critic       the model that criticises and rewrites; validation of rewritten prompts
"""

from .apo import APO, APOSettings, Version

__all__ = ["APO", "APOSettings", "Version"]
