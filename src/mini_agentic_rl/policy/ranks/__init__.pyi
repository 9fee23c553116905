from .follower import follow_rank_0 as follow_rank_0
from .leader import RankedPolicy as RankedPolicy
from .rendezvous import RankLostError as RankLostError
