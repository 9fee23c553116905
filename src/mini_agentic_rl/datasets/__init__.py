"""Data sets: tasks with a question and an answer, and examples for every form of training.

`load_task_dataset` and `load_examples` take a name, a file, a folder or a data set of the Hub. The rest is what they
are made of: rows and splits, records of files, preferences and their conversion. `TaskFamily` is how a recipe offers
tasks and agents by name.

What a process needs of it is loaded when it is asked for.
"""

from ..compat import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
