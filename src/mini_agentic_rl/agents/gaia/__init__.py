"""An assistant for GAIA's questions, with local tools; see `agent`, and `toolbox` for adding tools such as a search."""

from .agent import GaiaAgent
from .toolbox import FunctionTool, web_search_tool

__all__ = ["FunctionTool", "GaiaAgent", "web_search_tool"]
