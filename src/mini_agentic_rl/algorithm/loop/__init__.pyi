from .checkpoint import read_progress as read_progress
from .groups import Group as Group
from .groups import Trajectory as Trajectory
from .objective import Learners as Learners
from .objective import Objective as Objective
from .reinforcement import ReinforcementLearning as ReinforcementLearning
from .state import RunProgress as RunProgress
