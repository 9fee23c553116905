"""Training on written data: supervised fine-tuning on our learner; preferences and reward models on TRL.

Each method is a settings class and one function: `train_sft(SFTSettings(model="embedded", dataset="gsm8k"))`. The
functions load torch, and all but `train_sft` also TRL (the `trl` extra), when they are first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
