from .formats import export as export
from .merged_model import merge as merge
from .settings import ExportSettings as ExportSettings
from .settings import MergeSettings as MergeSettings
from .settings import ResultSettings as ResultSettings
