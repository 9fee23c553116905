from .advantage import Advantage as Advantage
from .advantage import group_centred as group_centred
from .advantage import group_normalized as group_normalized
from .mini_grpo import Backend as Backend
from .mini_grpo import MiniGRPO as MiniGRPO
from .settings import GRPOSettings as GRPOSettings
