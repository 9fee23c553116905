from .agent import GaiaAgent as GaiaAgent
from .score import final_answer as final_answer
from .score import is_right as is_right
from .tasks import LEVELS as LEVELS
from .tasks import load_gaia as load_gaia
from .toolbox import FunctionTool as FunctionTool
from .toolbox import web_search_tool as web_search_tool
