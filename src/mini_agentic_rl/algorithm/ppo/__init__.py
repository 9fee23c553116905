"""Mini-PPO: a critic, advantages over the tokens of a rollout, and the update made of them."""

from .gae import explained_variance, generalized_advantages, whiten
from .loss import PPOLoss, ValueLoss, clipped_value_error
from .mini_ppo import MiniPPO
from .settings import PPOSettings

__all__ = [
    "MiniPPO",
    "PPOLoss",
    "PPOSettings",
    "ValueLoss",
    "clipped_value_error",
    "explained_variance",
    "generalized_advantages",
    "whiten",
]
