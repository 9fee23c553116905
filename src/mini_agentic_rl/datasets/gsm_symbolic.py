"""GSM-Symbolic (arXiv:2410.05229) as reasoning-gym generates it: endless variations of grade-school problems.

A question belongs to the split that its hash names, so that no question is in two splits, whatever seed and size.
"""

from __future__ import annotations

from typing import Any

from .rows import DatasetError, Row, TaskRows, check_split, digest, split_of

_BLOCK = 1_000_000
"""Seeds of the generator from one `seed` to the next; each gives one batch."""
_BATCH = 1000
_MAX_BATCHES_WITHOUT_NEW = 50


def load_gsm_symbolic(split: str = "train", size: int = 1000, seed: int = 0) -> TaskRows:
    """`size` different problems of one split, at difficulty 1.0, the only one that the generator supports. A row's
    `solution` is the worked one.

    Raises:
        DatasetError: an unknown split, a negative size or seed, or a size beyond what the generator has to offer.
        ImportError: reasoning-gym is not installed (extra "reasoning").
    """
    wanted = check_split(split)
    if size < 0 or seed < 0:
        raise DatasetError(f"gsm_symbolic needs a size and a seed of 0 or more, not size={size}, seed={seed}")
    try:
        import reasoning_gym
    except ImportError as error:
        raise ImportError(
            'the dataset "gsm_symbolic" needs reasoning-gym: pip install "mini-agentic-rl[reasoning]"'
        ) from error
    rows: list[Row] = []
    used: set[str] = set()
    block, idle = seed * _BLOCK, 0
    while len(rows) < size:
        before = len(rows)
        for item in reasoning_gym.create_dataset("gsm_symbolic", seed=block, size=_BATCH):
            question = item["question"]
            if len(rows) < size and question not in used and split_of(question) == wanted:
                used.add(question)
                rows.append(_row(item, wanted))
        block += 1
        idle = idle + 1 if len(rows) == before else 0
        if idle == _MAX_BATCHES_WITHOUT_NEW:
            raise DatasetError(f"gsm_symbolic has no more than {len(rows)} {wanted} problems at hand; lower the size")
    return TaskRows(rows)


def _row(item: dict[str, Any], split: str) -> Row:
    return {
        "id": f"gsm_symbolic-{split}-{digest(item['question'])[:12]}",
        "question": item["question"],
        "answer": str(item["answer"]),
        "solution": item["metadata"]["answer_cot"],
        "difficulty": 1,
    }
