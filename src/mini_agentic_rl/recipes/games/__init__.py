"""Games and puzzles: `countdown`, `guess` and `wordle`."""

from .countdown import Countdown
from .guess import GuessTheNumber
from .wordle import Wordle

__all__ = ["Countdown", "GuessTheNumber", "Wordle"]
