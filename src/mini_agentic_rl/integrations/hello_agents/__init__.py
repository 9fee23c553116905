"""Training under the names of HelloAgents: `from mini_agentic_rl.rl import TrainingConfig, …`.

A thin layer over `post_training` (supervised training), `algorithm` (reinforcement learning), `rewards` and `datasets`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
