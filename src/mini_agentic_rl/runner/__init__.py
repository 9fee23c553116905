"""Runners: they claim rollouts from the store and run attempts of them with an agent.

`LitAgentRunner` is the runner, `RewardHook` and `LoggingHook` are hooks for it. A runner's worker has a name in the
store (`worker_name`), by which `give_back_of_worker` finds the rollout of a runner that died.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
