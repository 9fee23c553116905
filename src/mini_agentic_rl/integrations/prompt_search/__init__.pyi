from .apo import APO as APO
from .settings import APOSettings as APOSettings
from .state import Version as Version
