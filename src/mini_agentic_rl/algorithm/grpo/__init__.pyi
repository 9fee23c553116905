from .mini_grpo import Backend as Backend
from .mini_grpo import MiniGRPO as MiniGRPO
