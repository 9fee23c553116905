"""Data sets under the names of HelloAgents, as `datasets.Dataset`, which TRL's trainers accept too.

Rows are those of `mini_agentic_rl.datasets.load_examples`: messages to imitate ("sft"), a prompt with its right answer
("rl"), a chosen and a rejected answer ("preference"), or a good or bad answer ("unpaired"). Prompts are messages: the
gateway applies the chat template, so the arguments `tokenizer` and `model_name` of HelloAgents are ignored.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...datasets import FORMS, DatasetError, Form, ShapeError, examples_of, load_examples, records_of
from ...errors import UserError
from ...hub_access import ask_hub, cached
from ...visible_text import VisibleConsole

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)

Row = dict[str, Any]

GSM8K = "gsm8k"
LOCAL_GSM8K = "./gsm8k"
"""Folder of a local copy, below the working directory."""
STAND_IN = "arithmetic"
"""Generated word problems, the default data set if GSM8K cannot be loaded."""

_SHOWN = 300
"""Characters of a field that a preview shows."""


class GSM8KDataset(Sequence[Row]):
    """GSM8K (arXiv:2110.14168) in one of the forms of this module.

    Args:
        split: "train", "val" or "test".
        max_samples: at most this many rows; None takes all.
        format_type: "sft", "rl", "preference" or "unpaired".
        tokenizer: ignored.
        path: a local copy; None asks the Hub.

    Raises:
        DatasetError: it cannot be loaded; the message says what to give instead.
    """

    def __init__(
        self,
        split: str = "train",
        max_samples: int | None = None,
        format_type: Form = "sft",
        tokenizer: Any = None,
        *,
        path: str | None = None,
    ) -> None:
        self.split = split
        self.format_type = format_type
        self._rows = create_math_dataset(path or GSM8K, split, max_samples, format_type, tokenizer)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        """Return the row at an integer, or the rows of a slice."""
        return list(self)[index] if isinstance(index, slice) else self._rows[index]

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    def get_dataset(self) -> Dataset:
        """Return the rows as a `datasets.Dataset`."""
        return self._rows


def usual_dataset() -> str:
    """Return the default data set: `LOCAL_GSM8K` if there is such a folder, GSM8K if the Hub or its cache has it, else
    `STAND_IN`, with a warning."""
    if (local := local_copy(GSM8K)) != GSM8K:
        return local
    if cached("openai/gsm8k", "README.md", "dataset") or ask_hub():
        return GSM8K
    logger.warning(
        "GSM8K cannot be had: the Hugging Face Hub does not answer. Using %r instead, which is generated. To train on "
        "GSM8K put a copy into %s, or give its path as the data set",
        STAND_IN,
        LOCAL_GSM8K,
    )
    return STAND_IN


def local_copy(name: str) -> str:
    """Return `LOCAL_GSM8K` for GSM8K if that folder exists; other names unchanged."""
    return LOCAL_GSM8K if name == GSM8K and Path(LOCAL_GSM8K).is_dir() else name


def create_math_dataset(
    dataset_name: str | None = None,
    split: str = "train",
    max_samples: int | None = None,
    format_type: Form = "sft",
    tokenizer: Any = None,
) -> Dataset:
    """Return a data set in one of the forms of this module.

    Tools that a row offers are JSON text in its column `tools`.

    Args:
        dataset_name: "gsm8k", "arithmetic", "gsm_symbolic", a file (JSON, JSONL, CSV, Parquet), a Hub id; None takes
            `usual_dataset()`.
        split: "train", "val" or "test".
        max_samples: at most this many rows; None takes all.
        format_type: "sft", "rl", "preference" or "unpaired".
        tokenizer: ignored.

    Raises:
        DatasetError: there is no such data set, it lacks a field of the form, or its rows do not fit into columns.
        UserError: an unknown form.
    """
    form = _checked(format_type)
    name = usual_dataset() if dataset_name is None else local_copy(dataset_name)
    return _in_columns(load_examples(name, form, split=split, max_samples=max_samples), name)


def create_sft_dataset(
    max_samples: int | None = 1000, split: str = "train", *, dataset_name: str | None = None
) -> Dataset:
    """Return demonstrations of math problems; as `create_math_dataset`."""
    return create_math_dataset(dataset_name, split, max_samples, "sft")


def create_rl_dataset(
    max_samples: int | None = 500,
    split: str = "train",
    model_name: str | None = None,
    *,
    dataset_name: str | None = None,
) -> Dataset:
    """Return math problems as tasks, each with its `prompt` and its `ground_truth`; as `create_math_dataset`."""
    return create_math_dataset(dataset_name, split, max_samples, "rl")


def format_math_dataset(
    dataset: Iterable[Mapping[str, Any]], format_type: Form = "sft", model_name: str | None = None
) -> Dataset:
    """Return rows with a `question` and an `answer` in one of the forms of this module.

    A worked solution that ends in "#### 42", as GSM8K has it, is imitated as a whole, and its right answer is 42.

    Raises:
        DatasetError: a row has no question or no answer, or the rows do not fit into columns.
        UserError: an unknown form.
    """
    form = _checked(format_type)
    rows: list[Row] = []
    for number, record in enumerate(records_of(dataset)):
        try:
            rows += examples_of(record, form, f"row-{number}")
        except ShapeError as error:
            raise DatasetError(f"dataset, row {number}: {error}") from error
    return _in_columns(rows, "dataset")


def preview_dataset(dataset: Sequence[Mapping[str, Any]] | Dataset, num_samples: int = 3) -> None:
    """Print the first rows, one field per line, long ones truncated."""
    console = VisibleConsole()
    count = min(num_samples, len(dataset))
    console.print(f"{count} of {len(dataset)} rows", style="bold", highlight=False)
    for index in range(count):
        console.print(f"row {index}", style="dim", highlight=False)
        for name, value in dataset[index].items():
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
            shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]} …"
            console.print(f"  {name}: {shown}", markup=False, highlight=False, soft_wrap=True)


def load_dataset(
    dataset_name: str | None = None, format_type: Form = "sft", split: str = "train", max_samples: int | None = None
) -> Dataset:
    """Do the same as `create_math_dataset`."""
    return create_math_dataset(dataset_name, split, max_samples, format_type)


def _checked(format_type: str) -> Form:
    for form in FORMS:
        if form == format_type:
            return form
    raise UserError(f"format_type must be one of {', '.join(FORMS)}, not {format_type!r}")


def _in_columns(rows: Sequence[Mapping[str, Any]], name: str) -> Dataset:
    """Return rows as a `datasets.Dataset`; missing values are None.

    Raises:
        DatasetError: values of one column are of types that have nothing in common.
    """
    from pyarrow import ArrowException

    from datasets import Dataset

    columns = {
        column: [row.get(column) for row in rows] for column in dict.fromkeys(key for row in rows for key in row)
    }
    if "tools" in columns:
        # As nested columns, every tool would get the parameters of all others, as None.
        columns["tools"] = [
            tools if tools is None or isinstance(tools, str) else json.dumps(tools, ensure_ascii=False)
            for tools in columns["tools"]
        ]
    try:
        return Dataset.from_dict(columns)
    except (ArrowException, TypeError, ValueError) as error:
        raise DatasetError(
            f"{name}: the rows do not fit into columns of one type each ({str(error).splitlines()[0]}); "
            "mini_agentic_rl.datasets.load_examples gives them as they are"
        ) from error
