"""Data sets: tasks with a question and an answer, and examples for every form of training.

`load_task_dataset` and `load_examples` take a name, a file, a folder or a data set of the Hub. The rest is what they
are made of: rows and splits, records of files, preferences and their conversion. Questions to a SQL database are in
`datasets.sql`.

What a process needs of it is loaded when it is asked for.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
