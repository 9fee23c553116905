"""What one method does in its own way; `run` does what all of them have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

from transformers import TrainerCallback, set_seed

from datasets import Dataset

from ..gateway.render.renderer import ChatRenderer
from .models import TrainedModel
from .rows import Example, TokenRows
from .settings import PostTrainingSettings

Rows: TypeAlias = Sequence[Example] | None
"""Examples given by hand; None where they are to be read."""
Callbacks: TypeAlias = Sequence[TrainerCallback]

S = TypeVar("S", bound=PostTrainingSettings)


@dataclass(frozen=True)
class TrainerParts:
    """The trainer of TRL that a method learns by."""

    trainer: Any
    """Its class."""
    configuration: Any
    """The class of its configuration."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What the method's settings say in it; this wins over what all methods share."""

    def make(self, loaded: TrainedModel, arguments: Mapping[str, Any], train: Dataset, measured: Dataset) -> Any:
        """The trainer of a model, under the `arguments` that all methods share. A new adapter depends on the seed:
        TRL 1.14 draws it before it sets the seed."""
        set_seed(arguments["seed"])
        return self.trainer(
            model=loaded.model,
            args=self.configuration(**{**arguments, **self.options}),
            train_dataset=train,
            eval_dataset=measured,
            processing_class=loaded.tokenizer,
            peft_config=loaded.new_adapter,
        )


@dataclass(frozen=True)
class Method(Generic[S]):
    """What one method does in its own way."""

    name: str
    form: str
    """The form of its examples; see `load_examples`."""
    tokenise: Callable[[ChatRenderer, Sequence[Example], S], TokenRows]
    """Examples to the rows that its trainer reads."""
    load: Callable[[S], TrainedModel]
    """The model with its head."""
    trainer: Callable[[S], TrainerParts]
    """Its trainer; TRL is imported here."""
    result: Callable[[Any, int], dict[str, Any]] = lambda trainer, measured: {}
    """What else belongs into the summary, of the trainer after its last evaluation, on so many rows."""


def on_token_ids(trainer: Any) -> Any:
    """The class of a trainer that takes its rows as they are: they are token ids already, and TRL would render text."""

    class OnTokenIds(trainer):  # type: ignore[misc]  # TRL has no types here
        def _prepare_dataset(self, dataset: Dataset, *_: Any, **__: Any) -> Dataset:
            return dataset

    return OnTokenIds
