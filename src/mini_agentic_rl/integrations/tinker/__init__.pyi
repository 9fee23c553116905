from .server import TinkerServer as TinkerServer
from .server import open_tinker_server as open_tinker_server
from .settings import ClientSettings as ClientSettings
from .settings import TinkerSettings as TinkerSettings
