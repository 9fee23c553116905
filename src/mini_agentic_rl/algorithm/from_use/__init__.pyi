from .baselines import Baselines as Baselines
from .judging import EndedSessions as EndedSessions
from .learner import UseLearner as UseLearner
from .settings import USE_LOOP as USE_LOOP
from .settings import UseSettings as UseSettings
from .settings import use_loop as use_loop
