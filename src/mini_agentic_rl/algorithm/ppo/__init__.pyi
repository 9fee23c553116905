from .mini_ppo import MiniPPO as MiniPPO
