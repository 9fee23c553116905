"""Task data sets: rows with a question and an answer."""

from .arithmetic import ArithmeticDataset
from .jsonl import load_jsonl
from .load import load_task_dataset
from .rows import DatasetError, Row, Split, TaskRows

__all__ = ["ArithmeticDataset", "DatasetError", "Row", "Split", "TaskRows", "load_jsonl", "load_task_dataset"]
