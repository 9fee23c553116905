from .apo import APO as APO
from .beam import Version as Version
from .critic import CriticError as CriticError
from .settings import APOSettings as APOSettings
