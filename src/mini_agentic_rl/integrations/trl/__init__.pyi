from .environment import Tool as Tool
from .environment import TRLEnvironment as TRLEnvironment
from .environment import TRLRewards as TRLRewards
from .environment import WithoutEnvironment as WithoutEnvironment
from .rollout_agent import RolloutFunction as RolloutFunction
from .rollout_agent import RolloutFunctionAgent as RolloutFunctionAgent
from .rollout_agent import RolloutTrainer as RolloutTrainer
