from .apo import APO as APO
from .beam import Version as Version
from .settings import APOSettings as APOSettings
