from .agent import FunctionTool as FunctionTool
from .agent import GaiaAgent as GaiaAgent
from .agent import web_search_tool as web_search_tool
from .tasks import LEVELS as LEVELS
from .tasks import final_answer as final_answer
from .tasks import is_right as is_right
from .tasks import load_gaia as load_gaia
