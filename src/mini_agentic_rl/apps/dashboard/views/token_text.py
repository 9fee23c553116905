"""Texts of tokens, by the tokenizer of a run where it is on this computer. Nothing is fetched, and torch is not needed.

A run's folder keeps a tokenizer beside its weights after a pass over the tasks; else the model that its configuration
names has one: a folder, the embedded model, or a model in the cache of the Hugging Face hub.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

_FILE = "tokenizer.json"


class TokenTexts:
    """The texts of a vocabulary.

    Args:
        path: a `tokenizer.json`.

    Raises:
        Exception: whatever the tokenizer's library raises of a file that it cannot read.
    """

    def __init__(self, path: Path) -> None:
        from tokenizers import Tokenizer

        self.name = str(path.parent.name)
        self._tokenizer = Tokenizer.from_file(str(path))
        self._texts: dict[int, str] = {}

    def of(self, ids: Sequence[int]) -> list[str]:
        """Return the text of each id by itself; what is no whole character comes as U+FFFD."""
        new = [one for one in dict.fromkeys(ids) if one not in self._texts]
        decoded = self._tokenizer.decode_batch([[one] for one in new], skip_special_tokens=False)
        self._texts.update(zip(new, decoded, strict=True))
        return [self._texts[one] for one in ids]


def find_texts(folder: Path | None, config: Mapping[str, Any]) -> TokenTexts | None:
    """Return the texts of a run's tokens; None where its tokenizer is not on this computer.

    Args:
        folder: of the run.
        config: the run's configuration.
    """
    for path in _candidates(folder, config):
        if path.is_file():
            try:
                return TokenTexts(path)
            except Exception as error:  # a damaged file, or one of a newer library: the ids are shown instead
                logger.warning("the tokenizer %s cannot be read: %s", path, error)
    return None


def _candidates(folder: Path | None, config: Mapping[str, Any]) -> Iterator[Path]:
    if folder is not None:
        yield folder / "adapter" / _FILE
        yield from (found / _FILE for found in sorted(folder.glob("epoch_*"), reverse=True))
    load = config.get("load")
    model = config.get("model") or (load.get("model") if isinstance(load, Mapping) else None)
    if not isinstance(model, str) or not model:
        return
    if model == "embedded":
        from ....policy import embedded_path

        yield embedded_path() / _FILE
    elif (Path(model).expanduser() / _FILE).is_file():
        yield Path(model).expanduser() / _FILE
    elif model.count("/") == 1 and not model.startswith((".", "/", "~")):
        from huggingface_hub import try_to_load_from_cache

        try:
            found = try_to_load_from_cache(model, _FILE)
        except ValueError:  # no name that the hub could have
            return
        if isinstance(found, str):
            yield Path(found)
