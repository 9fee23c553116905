"""Data sets: tasks with a question and an answer, and examples for every form of training.

`load_task_dataset` and `load_examples` take the name of a recipe, a file, a folder or a data set of the Hub. Modules
are imported on first use.
"""

from ..compat import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
