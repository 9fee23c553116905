"""Examples as rows of token ids, in exactly the tokens that agents get from the gateway.

With any chat template, only the assistant's tokens and the token that ends its turn are trained: not the template's
text, not tool results, and not padding, even where the end token is the padding token.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..datasets import (
    is_marked_trained,
    read_conversation,
    read_flag,
    read_tools,
    refuse_untrained,
    refuse_untrained_row,
    with_json_read,
)
from ..errors import UserError
from ..gateway import ChatRenderer
from ..http import BadRequestError
from ..metrics import counted
from ..tokens import CompletionRecord, TokenTree

logger = logging.getLogger(__name__)

Example = Mapping[str, Any]
IGNORED = -100
"""Label of a token that is not trained, in transformers."""

_TOO_LONG = "longer than `max_length`"


@dataclass
class TokenRows:
    """Examples as token ids."""

    rows: list[Any] = field(default_factory=list)
    """For SFT a list of completion records for each conversation, otherwise columns of the method's trainer."""
    tokens: int = 0
    """Number of ids in all rows; in a conversation, a shared beginning counts once."""
    shortened: int = 0
    """Number of conversations that were cut at the end."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Number of examples that were left out, by reason."""

    def read(self, examples: Iterable[Example], read: Callable[[Example], tuple[Any, int] | str]) -> TokenRows:
        """Add the rows of examples; `read` returns a row and its tokens, or the reason to leave the example out.

        Raises:
            UserError: an example cannot be read; the message has its number.
        """
        for index, example in enumerate(examples):
            try:
                row = read(example)
            except (BadRequestError, KeyError, TypeError, ValueError) as error:
                reason = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
                raise UserError(f"example {index} cannot be read: {reason}", setting="dataset") from error
            if isinstance(row, str):
                self.dropped[row] += 1
            else:
                self.rows.append(row[0])
                self.tokens += row[1]
        return self


def sft_rows(renderer: ChatRenderer, examples: Iterable[Example], max_length: int) -> TokenRows:
    """Return for each conversation of `messages` (and `tools`) its answers as completion records.

    Each answer is trained once, after the prompt that it answers; `conversation_tree` joins those that continue each
    other. Answers with `train` False are read and not trained. Answers are cut, or left out, at `max_length`.

    Raises:
        UserError: an example cannot be rendered, or none of its answers is to be trained.
    """
    result = TokenRows()

    def read(example: Example) -> tuple[list[CompletionRecord], int] | str:
        if is_marked_trained(example) is False:
            return "marked as not to be trained"
        example = _with_messages(example, {"messages": "user"})
        answers = [message for message in example["messages"] if message["role"] == "assistant"]
        records = renderer.conversation_to_records(example["messages"], example["tools"])
        trained = [record for record, answer in zip(records, answers, strict=True) if answer.get("train", True)]
        if not trained:
            raise ValueError("every answer is marked as not to be trained")
        row = []
        for record in trained:
            if (size := max_length - record.prompt_ids.size) > 0:
                row.append(replace(record, output_ids=record.output_ids[:size], logprobs=record.logprobs[:size]))
        if not row:
            return "no answer within `max_length`"
        result.shortened += any(record.prompt_ids.size + record.output_ids.size > max_length for record in trained)
        return row, conversation_tree([row]).token_count

    result.read(examples, read)
    return result


def conversation_tree(rows: Iterable[Sequence[CompletionRecord]]) -> TokenTree:
    """Return one token tree of the conversations of `sft_rows`."""
    tree = TokenTree()
    for index, records in enumerate(rows):
        for record in records:
            tree.insert(record, index)
    return tree


def preference_rows(renderer: ChatRenderer, examples: Iterable[Example], max_length: int) -> TokenRows:
    """Return `prompt_ids`, `chosen_ids` and `rejected_ids` of `prompt`, `chosen` and `rejected`.

    Raises:
        UserError: an example cannot be rendered.
    """

    def read(example: Example) -> tuple[dict[str, Any], int] | str:
        refuse_untrained_row(example)
        example = _with_messages(example, {"prompt": "user", "chosen": "assistant", "rejected": "assistant"})
        prompt, chosen = prompt_and_answer(renderer, example, "chosen")
        rejected = prompt_and_answer(renderer, example, "rejected")[1]
        if chosen == rejected:
            return "chosen and rejected are the same"
        if len(prompt) + max(len(chosen), len(rejected)) > max_length:
            return _TOO_LONG
        tokens = 2 * len(prompt) + len(chosen) + len(rejected)
        return {"prompt_ids": prompt, "chosen_ids": chosen, "rejected_ids": rejected}, tokens

    return TokenRows().read(examples, read)


def unpaired_rows(renderer: ChatRenderer, examples: Iterable[Example], max_length: int) -> TokenRows:
    """Return `prompt_ids`, `completion_ids` and `label` of `prompt`, `completion` and `label`.

    Raises:
        UserError: an example cannot be rendered.
    """

    def read(example: Example) -> tuple[dict[str, Any], int] | str:
        refuse_untrained_row(example)
        label = read_flag(example["label"])
        if label is None:
            raise ValueError(f"label is neither true nor false: {example['label']!r}")
        example = _with_messages(example, {"prompt": "user", "completion": "assistant"})
        prompt, completion = prompt_and_answer(renderer, example, "completion")
        if len(prompt) + len(completion) > max_length:
            return _TOO_LONG
        return {"prompt_ids": prompt, "completion_ids": completion, "label": label}, len(prompt) + len(completion)

    return TokenRows().read(examples, read)


def prompt_and_answer(renderer: ChatRenderer, example: Example, column: str) -> tuple[list[int], list[int]]:
    """Return the ids of the prompt, and of the answer with the token that ends it.

    Args:
        renderer: of the model.
        example: `prompt` and `column` as lists of messages, and optionally `tools`.
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
    """Log the examples that were left out or cut, by reason.

    Raises:
        UserError: no row is left.
    """
    for reason, count in rows.dropped.items():
        logger.warning("%s left out: %s", counted(count, "example"), reason)
    if rows.shortened:
        logger.warning("%s cut to `max_length`", counted(rows.shortened, "conversation"))
    if not rows.rows:
        reasons = ", ".join(rows.dropped) or "the data set is empty"
        raise UserError(f"no example is left to train on ({reasons})", setting="dataset")


def _with_messages(example: Example, columns: Mapping[str, str]) -> Example:
    """Return the example with its tools and `columns` read as those of files are.

    `columns` maps a column to the role of the message that a text in it becomes.
    """
    example = with_json_read(example)
    messages: dict[str, Any] = {}
    for name, role in columns.items():
        if isinstance(example[name], str):
            messages[name] = [{"role": role, "content": example[name]}]
        else:
            messages[name] = read_conversation(example[name], name) if example[name] else []
        if role == "assistant":
            refuse_untrained(messages[name], name)
    return {**example, **messages, "tools": read_tools(example.get("tools"))}
