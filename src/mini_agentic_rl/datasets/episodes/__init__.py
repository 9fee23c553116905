"""Tasks with turns: puzzles, games, tools and retrieval, each with a seeded generator, an expert and a reward.

`Episodes` is a family of tasks, `Episode` one of them being worked on; `find_episodes` knows the families by name, and
`load_episodes` and `episode_examples` give their rows and examples. What each family tests stands in its module.
"""

from .episode import SPLITS_OF_EPISODES, TRANSFER, Episode, Episodes
from .families import (
    EPISODES,
    episode_examples,
    find_episodes,
    is_episodes,
    load_episodes,
    tokens_of_episodes,
)
from .gym import REASONING_GYM
from .toolbox import use_text_tool

__all__ = [
    "EPISODES",
    "REASONING_GYM",
    "SPLITS_OF_EPISODES",
    "TRANSFER",
    "Episode",
    "Episodes",
    "episode_examples",
    "find_episodes",
    "is_episodes",
    "load_episodes",
    "tokens_of_episodes",
    "use_text_tool",
]
