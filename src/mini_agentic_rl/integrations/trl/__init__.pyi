from .environment import Tool as Tool
from .environment import TRLEnvironment as TRLEnvironment
from .environment import TRLRewards as TRLRewards
from .environment import WithoutEnvironment as WithoutEnvironment
