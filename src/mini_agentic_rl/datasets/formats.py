"""One record as an example of each form of training: imitation, rewards, pairs, and labels.

All are conversations in OpenAI's messages. The prompt of a record is found whatever its fields are called.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from .messages import (
    CONVERSATION_FIELDS,
    Message,
    ShapeError,
    assistant,
    is_conversation,
    question_of,
    read_conversation,
    read_prompt,
    read_tools,
    with_system,
)
from .preferences import NO_PREFERENCE, read_preference
from .records import fields_of
from .rows import digest
from .worked import final_answer

Example: TypeAlias = dict[str, Any]
Form: TypeAlias = Literal["sft", "rl", "preference", "unpaired"]
FORMS: tuple[Form, ...] = ("sft", "rl", "preference", "unpaired")

ANSWER_FIELDS: tuple[str, ...] = ("completion", "response", "output", "solution", "answer", "chosen", "target")
"""Fields with the answer to imitate, the first that a record has."""
TRUTH_FIELDS: tuple[str, ...] = ("ground_truth", "answer", "final_answer", "target", "solution")
"""Fields with the right answer, the first that a record has; verl's `reward_model.ground_truth` comes before them."""


def examples_of(record: Mapping[str, Any], form: Form, default_id: str) -> list[Example]:
    """Return the examples that a record gives: one, or for `unpaired` up to two.

    Raises:
        ShapeError: the record is none of the known shapes of this form.
    """
    if form == "sft":
        return [sft_example(record)]
    if form == "rl":
        return [task_example(record, default_id)]
    if form == "preference":
        return [read_preference(record).row()]
    return unpaired_examples(record)


def sft_example(record: Mapping[str, Any]) -> Example:
    """`{"messages": […]}`, the answer last; with `tools` where the record offers any.

    Raises:
        ShapeError: there is no prompt, or no answer.
    """
    name = next((name for name in CONVERSATION_FIELDS if is_conversation(record.get(name))), None)
    answer_field = next((field for field in ANSWER_FIELDS if record.get(field)), None)
    if name is not None and (
        answer_field is None or record[name][-1].get("role", record[name][-1].get("from")) != "user"
    ):
        messages = with_system(record, read_conversation(record[name], name))
    elif answer_field is None:
        raise ShapeError("no answer to imitate", fields_of(record))
    else:
        messages = _joined(read_prompt(record), record[answer_field], answer_field)
    if messages[-1]["role"] != "assistant":
        raise ShapeError("the conversation does not end with an answer")
    if not any(message["role"] in ("user", "tool") for message in messages):
        raise ShapeError("empty prompt")
    tools = read_tools(record.get("tools"))
    return {"messages": messages} if tools is None else {"messages": messages, "tools": tools}


def task_example(record: Mapping[str, Any], default_id: str) -> Example:
    """`{"prompt": […], "ground_truth", "id", "question", "answer"}`, the last four as text; with `tools` where the
    record offers any.

    A worked solution that ends in "#### 42" gives 42.

    Raises:
        ShapeError: there is no prompt, or no right answer.
    """
    prompt = read_prompt(record)
    truth = _truth(record)
    question = question_of(prompt)
    tools = read_tools(record.get("tools"))
    return {
        "prompt": prompt,
        "ground_truth": truth,
        "id": str(record.get("id", default_id)),
        "question": question,
        "answer": truth,
        **({} if tools is None else {"tools": tools}),
    }


def unpaired_examples(record: Mapping[str, Any]) -> list[Example]:
    """`{"prompt": […], "completion": […], "label": bool}`: one of a record with a label, two of a preference.

    Raises:
        ShapeError: the record is neither.
    """
    label = _label(record)
    if label is not None:
        field = next((field for field in ("completion", "response", "output", "answer") if record.get(field)), None)
        if field is None:
            raise ShapeError("no answer that the label judges", fields_of(record))
        prompt = read_prompt(record)
        return [{"prompt": prompt, "completion": _joined([], record[field], field), "label": label}]
    try:
        pair = read_preference(record)
    except ShapeError as error:
        if error.reason == NO_PREFERENCE:
            raise ShapeError("neither a label nor a preference", fields_of(record)) from None
        raise
    return unpaired_of(pair.row())


def unpaired_of(pair: Example) -> list[Example]:
    """Return both answers of a preference, each on its own."""
    return [
        {"prompt": pair["prompt"], "completion": pair["chosen"], "label": True},
        {"prompt": pair["prompt"], "completion": pair["rejected"], "label": False},
    ]


def prompt_key(example: Mapping[str, Any]) -> str:
    """Return the text that decides the split of an example: the question that it begins with.

    So two examples of one question are never in two splits.
    """
    messages = example.get("prompt", example.get("messages"))
    if isinstance(messages, list) and is_conversation(messages):
        return question_of(messages)
    if isinstance(messages, str):
        return messages
    question = example.get("question")
    return question if isinstance(question, str) else digest(json.dumps(example, sort_keys=True, default=str))


def _joined(prompt: list[Message], answer: Any, field: str) -> list[Message]:
    """Return the prompt and an answer given as text or messages; whole conversations stand for themselves."""
    if isinstance(answer, str):
        if not answer.strip():
            raise ShapeError(f"{field} is empty")
        return [*prompt, assistant(answer)]
    messages = read_conversation(answer, field)
    return messages if prompt and messages[: len(prompt)] == prompt else [*prompt, *messages]


def _truth(record: Mapping[str, Any]) -> str:
    verl = record.get("reward_model")
    value = verl.get("ground_truth") if isinstance(verl, Mapping) else None
    if value is None:
        value = next((record[field] for field in TRUTH_FIELDS if record.get(field) is not None), None)
    answer = final_answer(value)
    if answer is None:
        raise ShapeError("no right answer", fields_of(record))
    if not answer:
        raise ShapeError('nothing after the "####" of the answer')
    return answer


def _label(record: Mapping[str, Any]) -> bool | None:
    """KTO's label: true or false, 1 or 0, or their text."""
    value = record.get("label", record.get("kto_tag"))
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float) and value in (0, 1):
        return bool(value)
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    return None
