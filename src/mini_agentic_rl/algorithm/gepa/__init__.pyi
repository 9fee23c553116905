from .gepa import GEPA as GEPA
from .settings import GEPASettings as GEPASettings
