"""Examples as rows of token ids, in exactly the tokens that agents get from the gateway.

Whatever the chat template, what is trained are the assistant's own tokens with the token that ends its turn, and
nothing else: not the template's text around them, not tool results, not padding, even where the end token pads.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..datasets import read_conversation, read_flag, read_tools, refuse_untrained, with_json_read
from ..errors import UserError
from ..gateway import ChatRenderer
from ..http import BadRequestError
from ..metrics import counted
from ..tokens import CompletionRecord

logger = logging.getLogger(__name__)

Example = Mapping[str, Any]
T = TypeVar("T")
IGNORED = -100
"""The label of a token that is not trained, as transformers wants it."""

_TOO_LONG = "longer than `max_length`"


@dataclass
class TokenRows:
    """Examples as token ids."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    """As the trainer of the method reads them."""
    tokens: int = 0
    """Number of ids in all rows."""
    shortened: int = 0
    """Number of rows that were cut at the end."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Number of examples that were left out, by reason."""

    def add(self, row: dict[str, Any], tokens: int) -> None:
        """Add a row of so many ids."""
        self.rows.append(row)
        self.tokens += tokens


def sft_rows(renderer: ChatRenderer, examples: Iterable[Example], max_length: int) -> TokenRows:
    """Return `input_ids` and `labels` of `messages` (and `tools`).

    Each assistant turn is trained once, behind the prompt that it would answer. Turns that continue each other token by
    token share a row; where the template rewrites history, as with earlier thoughts, a new row begins. Turns with
    `train` False are read and not trained.

    Raises:
        UserError: an example cannot be rendered, or none of its answers is to be trained.
    """
    found = TokenRows()

    def read(example: Example) -> list[tuple[list[int], list[int]]]:
        records = renderer.conversation_to_records(example["messages"], example.get("tools"))
        answers = [message for message in example["messages"] if message["role"] == "assistant"]
        chains = _chains(records, [message.get("train", True) for message in answers])
        trained = [(ids, labels) for ids, labels in chains if any(label != IGNORED for label in labels)]
        if not trained:
            raise ValueError("every answer is marked as not to be trained")
        return trained

    for chains in _read(examples, {"messages": "user"}, read):
        for ids, labels in chains:
            if all(label == IGNORED for label in labels[:max_length]):
                found.dropped["no answer within `max_length`"] += 1
                continue
            found.shortened += len(ids) > max_length
            ids = ids[:max_length]
            found.add({"input_ids": ids, "labels": labels[:max_length]}, len(ids))
    return found


def preference_rows(renderer: ChatRenderer, examples: Iterable[Example], max_length: int) -> TokenRows:
    """Return `prompt_ids`, `chosen_ids` and `rejected_ids` of `prompt`, `chosen` and `rejected`.

    Raises:
        UserError: an example cannot be rendered.
    """
    found = TokenRows()
    for answers in _read(
        examples,
        {"prompt": "user", "chosen": "assistant", "rejected": "assistant"},
        lambda one: [prompt_and_answer(renderer, one, answer) for answer in ("chosen", "rejected")],
    ):
        (prompt, chosen), (_, rejected) = answers
        if chosen == rejected:
            found.dropped["chosen and rejected are the same"] += 1
        elif len(prompt) + max(len(chosen), len(rejected)) > max_length:
            found.dropped[_TOO_LONG] += 1
        else:
            row = {"prompt_ids": prompt, "chosen_ids": chosen, "rejected_ids": rejected}
            found.add(row, 2 * len(prompt) + len(chosen) + len(rejected))
    return found


def unpaired_rows(renderer: ChatRenderer, examples: Iterable[Example], max_length: int) -> TokenRows:
    """Return `prompt_ids`, `completion_ids` and `label` of `prompt`, `completion` and `label`.

    Raises:
        UserError: an example cannot be rendered.
    """
    found = TokenRows()
    for (prompt, completion), label in _read(
        examples,
        {"prompt": "user", "completion": "assistant"},
        lambda one: (prompt_and_answer(renderer, one, "completion"), _label(one)),
    ):
        if len(prompt) + len(completion) > max_length:
            found.dropped[_TOO_LONG] += 1
        else:
            row = {"prompt_ids": prompt, "completion_ids": completion, "label": label}
            found.add(row, len(prompt) + len(completion))
    return found


def prompt_and_answer(renderer: ChatRenderer, example: Example, column: str) -> tuple[list[int], list[int]]:
    """Return the ids of the prompt, and of the answer with the token that ends it.

    Args:
        renderer: of the model.
        example: `prompt` and `column` as lists of messages, and `tools` where it offers any.
        column: the answer.

    Raises:
        ValueError: the answer is not one assistant message.
        BadRequestError: the messages are malformed, or the chat template refuses them.
    """
    answer = example[column]
    if len(answer) != 1 or answer[0].get("role") != "assistant":
        raise ValueError(f"{column} has to be one assistant message; what comes before it belongs to the prompt")
    prompt = renderer.render(example["prompt"], example.get("tools"))
    return prompt, renderer.encode_answer(answer[0]) + list(renderer.eos_ids[:1])


def report_losses(rows: TokenRows) -> None:
    """Log what is not trained, and why.

    Raises:
        UserError: nothing is left.
    """
    for reason, count in rows.dropped.items():
        logger.warning("%s left out: %s", counted(count, "example"), reason)
    if rows.shortened:
        logger.warning("%s cut to `max_length`", counted(rows.shortened, "conversation"))
    if not rows.rows:
        reasons = ", ".join(rows.dropped) or "the data set is empty"
        raise UserError(f"no example is left to train on ({reasons})", setting="dataset")


def _chains(records: Sequence[CompletionRecord], trained: Sequence[bool]) -> list[tuple[list[int], list[int]]]:
    """Return ids and labels of the records, those that extend each other in one; `trained` says which have labels."""
    chains: list[tuple[list[int], list[int]]] = []
    for record, is_trained in zip(records, trained, strict=True):
        prompt, output = record.prompt_ids.tolist(), record.output_ids.tolist()
        labels = [IGNORED] * len(prompt)
        if chains and prompt[: len(chains[-1][0])] == chains[-1][0]:
            earlier = chains.pop()[1]
            labels[: len(earlier)] = earlier
        chains.append((prompt + output, labels + (output if is_trained else [IGNORED] * len(output))))
    return chains


def _label(example: Example) -> bool:
    label = read_flag(example["label"])
    if label is None:
        raise ValueError(f"label is neither true nor false: {example['label']!r}")
    return label


def _columns(example: Example, columns: Mapping[str, str]) -> Example:
    """Return the example with its tools and the messages of some columns read as those of files are.

    Args:
        example: the example.
        columns: the columns, and for each the role of the one message that a text is.
    """
    example = with_json_read(example)
    read = {
        name: [{"role": role, "content": example[name]}] if isinstance(example[name], str) else
        read_conversation(example[name], name) if example[name] else []
        for name, role in columns.items()
    }  # fmt: skip
    for name, role in columns.items():
        if role == "assistant":
            refuse_untrained(read[name], name)
    return {**example, **read, "tools": read_tools(example.get("tools"))}


def _read(examples: Iterable[Example], columns: Mapping[str, str], read: Callable[[Example], T]) -> Iterator[T]:
    """Yield what `read` makes of each example, of which it gets the `columns` as messages.

    Raises:
        UserError: an example cannot be rendered.
    """
    for index, example in enumerate(examples):
        try:
            found = read(_columns(example, columns))
        except (BadRequestError, KeyError, TypeError, ValueError) as error:
            reason = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
            raise UserError(f"example {index} cannot be read: {reason}", setting="dataset") from error
        yield found
