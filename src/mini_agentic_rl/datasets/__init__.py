"""Data sets: tasks with a question and an answer, and examples for every form of training."""

from .arithmetic import ArithmeticDataset
from .examples import divide_examples, load_examples
from .forms import Example, Form
from .jsonl import load_jsonl
from .load import load_task_dataset
from .rows import DatasetError, Row, Split, TaskRows

__all__ = [
    "ArithmeticDataset",
    "DatasetError",
    "Example",
    "Form",
    "Row",
    "Split",
    "TaskRows",
    "divide_examples",
    "load_examples",
    "load_jsonl",
    "load_task_dataset",
]
