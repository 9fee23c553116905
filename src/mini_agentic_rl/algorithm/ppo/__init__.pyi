from .gae import explained_variance as explained_variance
from .gae import generalized_advantages as generalized_advantages
from .gae import whiten as whiten
from .mini_ppo import MiniPPO as MiniPPO
from .settings import PPOSettings as PPOSettings
