from .agent import SqlAgent as SqlAgent
from .agent import sql_recipe as sql_recipe
from .reward import Queries as Queries
from .reward import RewardUnavailableError as RewardUnavailableError
from .reward import SqlReward as SqlReward
