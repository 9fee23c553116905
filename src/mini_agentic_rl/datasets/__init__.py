"""Data sets: tasks with a question and an answer, and examples for every form of training.

`load_task_dataset` and `load_examples` take a name, a file, a folder or a data set of the Hub. The rest is what they
are made of: rows and splits, records of files, preferences and their conversion. Questions to a SQL database are in
`datasets.sql`.
"""

from .arithmetic import ArithmeticDataset
from .conversation import (
    SYSTEM_PROMPT,
    TOOLS,
    can_be_shown,
    demonstration,
    opening,
    split_style,
    tools_for,
)
from .convert import convert_preferences
from .examples import divide_examples, load_examples
from .formats import FORMS, Example, Form, examples_of
from .load import EVERY_NAME, NAMES, load_task_dataset, splits_of
from .load import LOCAL as LOCAL_GSM8K
from .messages import ShapeError
from .name_options import named_options
from .overlap import overlap_of_splits, split_overlap
from .preferences import PreferenceFields
from .records import is_data_file, is_hub_name
from .rows import SPLITS, DatasetError, Row, Split, TaskRows, check_split, choose, digest, divided, select, split_of
from .small_talk import small_talk_conversations
from .tasks import load_jsonl

__all__ = [
    "EVERY_NAME",
    "FORMS",
    "LOCAL_GSM8K",
    "NAMES",
    "SPLITS",
    "SYSTEM_PROMPT",
    "TOOLS",
    "ArithmeticDataset",
    "DatasetError",
    "Example",
    "Form",
    "PreferenceFields",
    "Row",
    "ShapeError",
    "Split",
    "TaskRows",
    "can_be_shown",
    "check_split",
    "choose",
    "convert_preferences",
    "demonstration",
    "digest",
    "divide_examples",
    "divided",
    "examples_of",
    "is_data_file",
    "is_hub_name",
    "load_examples",
    "load_jsonl",
    "load_task_dataset",
    "named_options",
    "opening",
    "overlap_of_splits",
    "select",
    "small_talk_conversations",
    "split_of",
    "split_overlap",
    "split_style",
    "splits_of",
    "tools_for",
]
