"""A reward model as a reward function: one that is served somewhere, or one in a folder, served here meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..rewards import RemoteReward
from .prompt_agent import RewardFunction


@contextmanager
def scoring(reward: RewardFunction | str | Path) -> Iterator[RewardFunction]:
    """Within, the reward function that `reward` means: itself, the client of the service at a URL, or that of a service
    on the reward model in a folder, which answers many callers in batches and ends with the block.

    Raises:
        UserError: the folder holds no reward model.
        ValueError: a text that is neither a URL nor a folder.
    """
    if not isinstance(reward, str | Path):
        yield reward
        return
    if str(reward).startswith(("http://", "https://")):
        yield RemoteReward(str(reward))
        return
    from ..post_training.scoring import ScoreServer, load_scorer

    with ScoreServer(load_scorer(str(reward))) as server:
        yield RemoteReward(server.url)
