from .reward_model import RewardModel as RewardModel
from .reward_model import load_scorer as load_scorer
from .server import ScoreServer as ScoreServer
from .settings import BatchSettings as BatchSettings
from .settings import ScoreServerSettings as ScoreServerSettings
from .settings import TextLimits as TextLimits
