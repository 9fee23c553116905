from .link import RankLostError as RankLostError
from .policy import RankedPolicy as RankedPolicy
from .policy import follow_rank_0 as follow_rank_0
