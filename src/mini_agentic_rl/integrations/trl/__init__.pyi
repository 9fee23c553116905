from .environment import TRLEnvironment as TRLEnvironment
from .environment import WithoutEnvironment as WithoutEnvironment
from .rewards import TRLRewards as TRLRewards
from .rollout_agent import RolloutFunction as RolloutFunction
from .rollout_agent import RolloutFunctionAgent as RolloutFunctionAgent
from .rollout_trainer import RolloutTrainer as RolloutTrainer
from .tools import Tool as Tool
