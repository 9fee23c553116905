"""`doctor` without a run: whether the installation is whole, what the computer has, how fast it is, what to set.

Each check is a function that returns what it found; none changes anything beyond a file that it writes and removes.
"""

from .checks import Check
from .hardware import HARDWARE
from .installation import INSTALLATION
from .recommend import Recommendation, recommend
from .report import checkup
from .speed import Speed, measure_speed

__all__ = [
    "HARDWARE",
    "INSTALLATION",
    "Check",
    "Recommendation",
    "Speed",
    "checkup",
    "measure_speed",
    "recommend",
]
