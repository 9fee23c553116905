from .strategy import RayExecutionStrategy as RayExecutionStrategy
