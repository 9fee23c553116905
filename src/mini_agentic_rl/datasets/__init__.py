"""Data sets: tasks with a question and an answer, and examples for every form of training.

`load_task_dataset` and `load_examples` take a name, a file, a folder or a data set of the Hub. The rest is what they
are made of: rows and splits, records of files, preferences and their conversion. Questions to a SQL database are in
`datasets.sql`.
"""

from .arithmetic import ArithmeticDataset
from .convert import convert_preferences
from .examples import divide_examples, load_examples
from .formats import Example, Form, examples_of
from .load import LOCAL as LOCAL_GSM8K
from .load import NAMES, load_task_dataset
from .messages import ShapeError
from .preferences import PreferenceFields
from .records import is_data_file, is_hub_name
from .rows import DatasetError, Row, Split, TaskRows, check_split, choose, select
from .tasks import load_jsonl

__all__ = [
    "LOCAL_GSM8K",
    "NAMES",
    "ArithmeticDataset",
    "DatasetError",
    "Example",
    "Form",
    "PreferenceFields",
    "Row",
    "ShapeError",
    "Split",
    "TaskRows",
    "check_split",
    "choose",
    "convert_preferences",
    "divide_examples",
    "examples_of",
    "is_data_file",
    "is_hub_name",
    "load_examples",
    "load_jsonl",
    "load_task_dataset",
    "select",
]
