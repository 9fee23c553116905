from .app import dashboard_pages as dashboard_pages
from .server import DashboardServer as DashboardServer
from .sources import ShownRun as ShownRun
from .sources import run_sources as run_sources
from .sources import store_source as store_source
