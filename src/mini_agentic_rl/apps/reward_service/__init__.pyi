from .rendering import BatchSettings as BatchSettings
from .rendering import ScoreServerSettings as ScoreServerSettings
from .rendering import TextLimits as TextLimits
from .reward_model import RewardModel as RewardModel
from .reward_model import load_scorer as load_scorer
from .server import ScoreServer as ScoreServer
