"""Examples as rows of token ids, in exactly the tokens that agents get from the gateway.

Whatever the chat template, what is trained are the assistant's own tokens with the token that ends its turn, and
nothing else: not the template's text around them, not tool results, not padding, even where the end token pads.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

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
    token share a row; where the template rewrites history, as with earlier thoughts, a new row begins.

    Raises:
        UserError: an example cannot be rendered.
    """
    found = TokenRows()
    for records in _read(
        examples, lambda one: renderer.conversation_to_records(_messages(one["messages"], "user"), tools_of(one))
    ):
        for ids, labels in _chains(records):
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
        examples, lambda one: [prompt_and_answer(renderer, one, answer) for answer in ("chosen", "rejected")]
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
        examples, lambda one: (prompt_and_answer(renderer, one, "completion"), bool(one["label"]))
    ):
        if len(prompt) + len(completion) > max_length:
            found.dropped[_TOO_LONG] += 1
        else:
            row = {"prompt_ids": prompt, "completion_ids": completion, "label": label}
            found.add(row, len(prompt) + len(completion))
    return found


def prompt_and_answer(renderer: ChatRenderer, example: Example, column: str) -> tuple[list[int], list[int]]:
    """Return the ids of the prompt, and of the answer with the token that ends it.

    Raises:
        KeyError: a column is missing.
        ValueError: the answer is not one assistant message.
        BadRequestError: the messages are malformed, or the chat template refuses them.
    """
    answer = _messages(example[column], "assistant")
    if len(answer) != 1 or answer[0].get("role") != "assistant":
        raise ValueError(f"{column} has to be one assistant message; what comes before it belongs to the prompt")
    prompt = renderer.render(_messages(example["prompt"], "user"), tools_of(example))
    return prompt, renderer.encode_answer(answer[0]) + list(renderer.eos_ids[:1])


def tools_of(example: Example) -> list[dict[str, Any]] | None:
    """Return the tools that an example offers: a list, or JSON text of one."""
    tools = example.get("tools")
    return json.loads(tools) if isinstance(tools, str) else tools


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


def _chains(records: Sequence[CompletionRecord]) -> list[tuple[list[int], list[int]]]:
    """Return ids and labels of the records, those that extend each other in one."""
    chains: list[tuple[list[int], list[int]]] = []
    for record in records:
        prompt, output = record.prompt_ids.tolist(), record.output_ids.tolist()
        labels = [IGNORED] * len(prompt)
        if chains and prompt[: len(chains[-1][0])] == chains[-1][0]:
            earlier = chains.pop()[1]
            labels[: len(earlier)] = earlier
        chains.append((prompt + output, labels + output))
    return chains


def _messages(value: Any, role: str) -> list[dict[str, Any]]:
    """Return the messages of a column, which may be plain text; in columns of a `Dataset` what is missing is None."""
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    return [
        {name: item for name, item in message.items() if item is not None or name == "content"} for message in value
    ]


def _read(examples: Iterable[Example], read: Callable[[Example], T]) -> Iterator[T]:
    """Yield what `read` makes of each example.

    Raises:
        UserError: an example cannot be rendered.
    """
    for index, example in enumerate(examples):
        try:
            found = read(example)
        except (BadRequestError, KeyError, TypeError, ValueError) as error:
            reason = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
            raise UserError(f"example {index} cannot be read: {reason}", setting="dataset") from error
        yield found
