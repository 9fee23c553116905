"""A task data set by its name or path, as the commands take it: generated, downloaded, or a file.

GSM8K (arXiv:2110.14168) comes from the Hugging Face Hub or a local copy. GSM-Symbolic (arXiv:2410.05229) is generated
by reasoning-gym: a question belongs to the split that its hash names, so that no question is in two splits, whatever
seed and size.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..errors import MissingPackageError, UserError
from ..plugins import load_plugin, or_plugin, plugin_has
from .arithmetic import TRANSFER, ArithmeticDataset
from .conversation import in_text, split_style
from .episodes import EPISODES, SPLITS_OF_EPISODES, is_episodes, load_episodes
from .records import SUFFIXES, is_data_file, is_hub_name
from .rows import SPLITS, DatasetError, Row, TaskRows, check_split, digest, meant, split_of
from .sql import MedicalQuestions
from .stories import LEVELS
from .tasks import as_row, load_tasks_of

HUB_NAME = "openai/gsm8k:main"
LOCAL_GSM8K = "./gsm8k"
"""Folder of a local copy, below the working directory."""


def load_gsm8k(
    split: str = "train", size: int | None = None, seed: int = 0, *, path: str | Path | None = None
) -> TaskRows:
    """Return rows of GSM8K: "test" is the published test set, "val" a tenth of the published training set, "train" the
    rest.

    `path` is a folder with train.jsonl and test.jsonl, or a clone of the Hub's repository; without it that is
    `LOCAL_GSM8K`, if there is such a folder, and else the Hub is asked.
    `size` rows are drawn with `seed`; None takes all. A row's `solution` is the worked one.

    Raises:
        DatasetError: an unknown split, a missing or malformed file, or no access to the Hub.
    """
    wanted = check_split(split)
    if path is not None or Path(LOCAL_GSM8K).is_dir():
        return load_tasks_of(path or LOCAL_GSM8K, wanted, size, seed)
    try:
        return load_tasks_of(HUB_NAME, wanted, size, seed)
    except DatasetError as error:
        raise DatasetError(
            f"{error.text}, as the folder {LOCAL_GSM8K} or by its path", setting=error.setting
        ) from error


_BLOCK = 1_000_000
"""Seeds of the generator from one `seed` to the next."""
_BATCH = 1000
_MAX_BATCHES_WITHOUT_NEW = 50


def load_gsm_symbolic(split: str = "train", size: int = 1000, seed: int = 0) -> TaskRows:
    """Return `size` different problems of one split, at difficulty 1.0, the only one that the generator supports. A
    row's `solution` is the worked one.

    Raises:
        DatasetError: an unknown split, a negative size or seed, or a size beyond what the generator has to offer.
        MissingPackageError: reasoning-gym is not installed (extra "reasoning").
    """
    wanted = check_split(split)
    if size < 0 or seed < 0:
        raise DatasetError(f"gsm_symbolic needs a size and a seed of 0 or more, not size={size}, seed={seed}")
    try:
        import reasoning_gym
    except ImportError as error:
        raise MissingPackageError("'gsm_symbolic'", "reasoning-gym", extra="reasoning", setting="dataset") from error
    rows: list[Row] = []
    used: set[str] = set()
    block, idle = seed * _BLOCK, 0
    while len(rows) < size:
        before = len(rows)
        for item in reasoning_gym.create_dataset("gsm_symbolic", seed=block, size=_BATCH):
            question = item["question"]
            if len(rows) < size and question not in used and split_of(question) == wanted:
                used.add(question)
                rows.append(
                    {
                        "id": f"gsm_symbolic-{wanted}-{digest(question)[:12]}",
                        "question": question,
                        "answer": str(item["answer"]),
                        "solution": item["metadata"]["answer_cot"],
                        "difficulty": 1,
                    }
                )
        block += _BATCH  # a problem draws its numbers by the seed of its batch plus its place
        idle = idle + 1 if len(rows) == before else 0
        if idle == _MAX_BATCHES_WITHOUT_NEW:
            raise DatasetError(f"gsm_symbolic has no more than {len(rows)} {wanted} problems at hand; lower the size")
    return TaskRows(rows)


NAMES: tuple[str, ...] = ("arithmetic", "gsm_symbolic", "gsm8k")
MEDICAL = "medical"
"""Questions with SQL queries, for the SQL agent alone."""
EVERY_NAME: tuple[str, ...] = (*NAMES, MEDICAL, *EPISODES)
"""Every data set that is known by its name."""
DEFAULT_SIZE = 1000
"""Rows of a generated data set when no size is given."""


def splits_of(name_or_path: str | Path) -> tuple[str, ...]:
    """Return the splits of a task data set, those to train on first."""
    name, _ = split_style(str(name_or_path))
    if is_episodes(name):
        return SPLITS_OF_EPISODES
    return (*SPLITS, TRANSFER) if name.partition(":")[0] == "arithmetic" else SPLITS


def load_task_dataset(
    name_or_path: str | Path, split: str = "train", size: int | None = None, seed: int = 0
) -> TaskRows:
    """Return rows with `id`, `question` and `answer`.

    `name_or_path` is one of `NAMES`, `MEDICAL` or `EPISODES` (`arithmetic:1,2` has problems of these levels only), the
    name of a plugin, a file (.jsonl, .json, .csv, .tsv or .parquet), a folder with files named for their splits, or
    `owner/name` on the Hugging Face Hub. What has no published splits is divided by its questions into train, val and
    test (8 : 1 : 1); the split "all", for everything that is not generated, takes every row. "text:" before the name
    asks for answers in words: the rows have the `style` "text", by which the math agent offers no calculator. Without a
    `size`, generated data sets have `DEFAULT_SIZE` rows and others all they hold.

    Raises:
        DatasetError: no such data set, split or file, or a malformed one.
        MissingPackageError: the extra that the data set needs is not installed.
    """
    name, as_text = split_style(str(name_or_path))
    rows = _load(name, split, size, seed)
    return TaskRows(in_text(rows)) if as_text else rows


def _load(name: str, split: str, size: int | None, seed: int) -> TaskRows:
    path = Path(name)
    if is_episodes(name):
        return load_episodes(name, split, size, seed)
    known, _, levels = name.partition(":")
    if known not in (*NAMES, MEDICAL):
        if is_plugged(name):
            return _plugged(name, split, size, seed)
        if not (path.exists() or is_data_file(path) or is_hub_name(name)):
            raise DatasetError(
                f"{name!r} does not exist{meant(name, EVERY_NAME)}; choose {', '.join(EVERY_NAME)}, "
                f"or give a file ({', '.join(SUFFIXES)}), a folder, or owner/name on the Hugging Face Hub"
                f"{or_plugin('datasets')}",
                setting="dataset",
            )
        return load_tasks_of(name, split, size, seed)
    if split == "all":
        raise DatasetError(f'{name}: the split "all" is for files; choose train, val or test', setting="dataset")
    if known == "arithmetic":
        return ArithmeticDataset(split, DEFAULT_SIZE if size is None else size, seed, _levels(known, levels))
    if split == TRANSFER:
        raise DatasetError(f"{name} has no stories kept apart: the split transfer is arithmetic's", setting="split")
    wanted = check_split(split)
    if known == MEDICAL:
        return MedicalQuestions(wanted, DEFAULT_SIZE if size is None else size, seed, _levels(known, levels))
    if levels:
        raise DatasetError(f"{name}: only arithmetic and medical have levels; write {known}", setting="dataset")
    if known == "gsm_symbolic":
        return load_gsm_symbolic(wanted, DEFAULT_SIZE if size is None else size, seed)
    return load_gsm8k(wanted, size, seed)


def is_plugged(name: str) -> bool:
    """Return True for a name that is no file here and that a plugin offers, with or without what follows a colon."""
    return not Path(name).exists() and plugin_has("datasets", name.partition(":")[0])


def _plugged(name: str, split: str, size: int | None, seed: int) -> TaskRows:
    """Return the rows of a plugin, which is called with split, size and seed, and with the text after a colon as
    `name` where there is one."""
    known, _, rest = name.partition(":")
    load = load_plugin("datasets", known, setting="dataset")
    more = {"name": rest} if rest else {}
    try:
        rows = [] if load is None else list(load(split=split, size=size, seed=seed, **more))
        return TaskRows(
            [as_row(dict(row), f"{name}: row {at}", f"{known}-{split}-{at}") for at, row in enumerate(rows)]
        )
    except UserError:
        raise
    except Exception as error:  # the plugin's code may fail in any way
        raise DatasetError(f"{name!r} gives no rows: {type(error).__name__}: {error}", setting="dataset") from error


def _levels(name: str, text: str) -> Sequence[int]:
    if not text:
        return LEVELS
    parts = text.split(",")
    if not all(part.strip() in map(str, LEVELS) for part in parts):
        raise DatasetError(
            f"{name}:{text}: the levels are {', '.join(map(str, LEVELS))}, as {name}:1,2", setting="dataset"
        )
    return [int(part) for part in parts]
