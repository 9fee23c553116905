"""One record as an example of each form of training: imitation, rewards, pairs, and labels.

Examples are conversations in OpenAI's messages.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from .messages import (
    Message,
    ShapeError,
    assistant,
    conversation_field,
    is_answer,
    is_conversation,
    is_marked_trained,
    question_of,
    read_conversation,
    read_flag,
    read_prompt,
    refuse_media,
    refuse_untrained,
    refuse_untrained_row,
    tools_of,
    with_system,
    without_marks,
)
from .preferences import NO_PREFERENCE, TRUTH_FIELDS, read_preference, with_json_read
from .records import fields_of
from .rows import digest, final_answer

Example: TypeAlias = dict[str, Any]
Form: TypeAlias = Literal["sft", "rl", "preference", "unpaired"]
FORMS: tuple[Form, ...] = ("sft", "rl", "preference", "unpaired")

ANSWER_FIELDS: tuple[str, ...] = ("completion", "response", "output", "solution", "answer", "chosen", "target")
"""Fields with the answer to imitate, by priority."""
JUDGED_FIELDS: tuple[str, ...] = ("completion", "response", "output", "answer")
"""Fields with the answer that a label judges, by priority; without one it is the last message."""
LABEL_FIELDS: tuple[str, ...] = ("label", "kto_tag", "kto_label", "desirable", "is_desirable", "tag")
"""Fields with the label of an answer, by priority."""
_GOOD = ("desirable", "good", "chosen", "positive", "preferred", "accepted", "up", "thumbs_up", "like", "+1")
_BAD = ("undesirable", "bad", "rejected", "negative", "non_preferred", "down", "thumbs_down", "dislike", "-1", "-1.0")


def examples_of(record: Mapping[str, Any], form: Form, default_id: str) -> list[Example]:
    """Return the examples of a record: one, for `unpaired` up to two. For `sft` none where the label calls the answer
    bad, or where the row is marked as not to be trained.

    Raises:
        ShapeError: no known shape of this form, or a mark for training that cannot be followed.
    """
    if form == "preference":
        return [read_preference(record)[0]]
    record = with_json_read(record)
    refuse_media(record, "the record")
    if form == "sft":
        is_trained = is_marked_trained(record)
        example = _sft_example(record)
        return [] if _label(record) is False or is_trained is False else [example]
    if form == "rl":
        return [task_example(record, default_id)]
    refuse_untrained_row(record)
    return _unpaired_examples(record)


def _sft_example(record: Mapping[str, Any]) -> Example:
    """Return `{"messages": […]}`, the answer last; with `tools` where the record has any.

    Answers have `train` False where the record marks them so, and in a `prompt` of messages (TRL trains the
    `completion` alone).
    """
    name = conversation_field(record)
    answer_field = next((field for field in ANSWER_FIELDS if record.get(field)), None)
    if name is not None and (answer_field is None or is_answer(record[name][-1])):
        messages = with_system(record, read_conversation(record[name], name))
    else:
        prompt = read_prompt(record)
        if answer_field is None:
            raise ShapeError("no answer to imitate", fields_of(record))
        if name is None and is_conversation(record.get("prompt")):
            prompt = [{**message, "train": False} if message["role"] == "assistant" else message for message in prompt]
        messages = _joined(prompt, record[answer_field], answer_field)
    if messages[-1]["role"] != "assistant":
        raise ShapeError("the conversation does not end with an answer")
    if not any(message["role"] in ("user", "tool") for message in messages):
        raise ShapeError("empty prompt")
    if all("train" in message for message in messages if message["role"] == "assistant"):
        raise ShapeError("every answer is marked as not to be trained")
    return {"messages": messages, **tools_of(record)}


def task_example(record: Mapping[str, Any], default_id: str) -> Example:
    """Return `{"prompt": […], "ground_truth", "id", "question", "answer"}`, the last four as text; with `tools` where
    the record has any.

    A worked solution that ends in "#### 42" gives the answer 42.

    Raises:
        ShapeError: there is no prompt, or no right answer.
    """
    prompt = without_marks(read_prompt(record))
    truth = _ground_truth(record)
    return {
        "prompt": prompt,
        "ground_truth": truth,
        "id": str(record.get("id", default_id)),
        "question": question_of(prompt),
        "answer": truth,
        **tools_of(record),
    }


def _unpaired_examples(record: Mapping[str, Any]) -> list[Example]:
    """Return `{"prompt": […], "completion": […], "label": bool}`: one of a record with a label, two of a preference."""
    label, judged = _label(record), _judged(record)
    if label is not None and judged is not None:
        prompt, completion = judged
        return [{"prompt": prompt, "completion": completion, "label": label, **tools_of(record)}]
    try:
        pair, _ = read_preference(record)
    except ShapeError as error:
        if error.reason != NO_PREFERENCE:
            raise
        if label is not None:
            raise ShapeError("no answer that the label judges", fields_of(record)) from None
        given = next((name for name in LABEL_FIELDS if record.get(name) is not None), None)
        if given is not None:
            raise ShapeError(f"{given} is neither true nor false", repr(record[given])[:60]) from None
        raise ShapeError("neither a label nor a preference", fields_of(record)) from None
    return unpaired_of(pair)


def unpaired_of(pair: Example) -> list[Example]:
    """Return the two answers of a preference as unpaired examples."""
    shared: Example = {name: pair[name] for name in ("prompt", "tools") if name in pair}
    return [
        {**shared, "completion": pair["chosen"], "label": True},
        {**shared, "completion": pair["rejected"], "label": False},
    ]


def prompt_key(example: Mapping[str, Any]) -> str:
    """Return the question of an example, which decides its split."""
    messages = example.get("prompt", example.get("messages"))
    if isinstance(messages, list) and is_conversation(messages):
        return question_of(messages)
    if isinstance(messages, str):
        return messages
    question = example.get("question")
    return question if isinstance(question, str) else digest(json.dumps(example, sort_keys=True, default=str))


def _judged(record: Mapping[str, Any]) -> tuple[list[Message], list[Message]] | None:
    """Return the prompt and the answer that a label judges."""
    name = conversation_field(record)
    field = next((field for field in JUDGED_FIELDS if record.get(field)), None)
    if name is not None and is_answer(record[name][-1]):
        messages = with_system(record, read_conversation(record[name], name))
        prompt, completion, field = messages[:-1], messages[-1:], name
        if not any(message["role"] in ("user", "tool") for message in prompt):
            raise ShapeError("empty prompt")
    elif field is not None:
        prompt, completion = read_prompt(record), _joined([], record[field], field)
    else:
        return None
    refuse_untrained(completion, field)
    return without_marks(prompt), completion


def _joined(prompt: list[Message], answer: Any, field: str) -> list[Message]:
    """Return the prompt and an answer of text or messages; the answer alone where it begins with the prompt."""
    if isinstance(answer, str):
        if not answer.strip():
            raise ShapeError(f"{field} is empty")
        return [*prompt, assistant(answer)]
    messages = read_conversation(answer, field)
    return messages if prompt and messages[: len(prompt)] == prompt else [*prompt, *messages]


def _ground_truth(record: Mapping[str, Any]) -> str:
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
    """Return KTO's label: true or false, 1, 0 or -1, their text, or a word for good or bad; None without one."""
    for name in LABEL_FIELDS:
        value = record.get(name)
        if value is None:
            continue
        flag = read_flag(value)
        if flag is not None:
            return flag
        word = str(value).strip().lower().replace(" ", "_")
        if word in _GOOD or word in _BAD:
            return word in _GOOD
    return None
