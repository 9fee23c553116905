"""Training on written data: supervised fine-tuning on our learner; preferences and reward models on TRL.

Each method is a settings class and one function: `train_sft(SFTSettings(model="embedded", dataset="gsm8k"))`. The
functions load torch, and those of preferences and reward models also TRL (the `trl` extra), when they are first used.
`merge` and `export` write the results for other programs: an adapter merged into its base, an adapter in plain peft
form, or a GGUF file.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
