"""An assistant for GAIA's questions, with local tools; tools such as a web search are plugged in.

`GaiaAgent` is what a trainer runs on the rows of `load_gaia`; `is_right` is the benchmark's score of an answer.
"""

from .agent import GaiaAgent
from .score import final_answer, is_right
from .tasks import LEVELS, load_gaia
from .toolbox import FunctionTool, web_search_tool

__all__ = ["LEVELS", "FunctionTool", "GaiaAgent", "final_answer", "is_right", "load_gaia", "web_search_tool"]
