from .base import Backend as Backend
from .base import BackendLoad as BackendLoad
from .policy import PolicyBackend as PolicyBackend
