from .command_settings import TinkerSettings as TinkerSettings
from .server import TinkerServer as TinkerServer
from .server import open_tinker_server as open_tinker_server
from .settings import ClientSettings as ClientSettings
