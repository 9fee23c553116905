"""Training under the names of HelloAgents: `from mini_agentic_rl.rl import TrainingConfig, …`.

A thin layer: supervised training is that of `post_training`, reinforcement learning that of `algorithm`, rewards and
data are those of `rewards` and `datasets`. Names are loaded when they are first asked for.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
