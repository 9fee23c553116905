"""Games and puzzles: `countdown` and `guess`."""

from .countdown import Countdown
from .guess import GuessTheNumber

__all__ = ["Countdown", "GuessTheNumber"]
