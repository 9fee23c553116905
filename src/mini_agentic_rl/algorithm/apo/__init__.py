"""APO, automatic prompt optimisation: beam search over textual gradients."""

from .apo import APO
from .beam import Version
from .critic import CriticError
from .settings import APOSettings

__all__ = ["APO", "APOSettings", "CriticError", "Version"]
