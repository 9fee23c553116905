from .settings import RaySettings as RaySettings
from .strategy import RayExecutionStrategy as RayExecutionStrategy
