from .formats import export as export
from .merged_model import merge as merge
