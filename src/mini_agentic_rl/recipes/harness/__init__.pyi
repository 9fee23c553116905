from .agent import HarnessAgent as HarnessAgent
from .agent import harness_recipe as harness_recipe
from .process import open_here as open_here
from .run import HarnessResult as HarnessResult
from .sandbox import Ended as Ended
from .sandbox import HarnessError as HarnessError
from .tasks import is_task_folder as is_task_folder
from .tasks import load_task_folder as load_task_folder
