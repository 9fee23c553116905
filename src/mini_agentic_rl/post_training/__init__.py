"""Training on written data, by TRL: supervised fine-tuning, preferences, and reward models.

Each method is a settings class and one function: `train_sft(SFTSettings(model="embedded", dataset="gsm8k"))`. The
functions need torch and TRL (the `trl` extra), which are loaded when a function is first asked for.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
