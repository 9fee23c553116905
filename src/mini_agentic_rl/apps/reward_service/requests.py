"""Requests and responses of the reward service, and its OpenAPI document.

Fields have the names that reward data and reward services use, so a row of a preference data set can be sent as it
is: `prompt` or `question`, `response` or `answer` or `completion`, `response_a` and `response_b` or `chosen` and
`rejected`. A prompt or a response is text, one message, or a list of messages.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import AfterValidator, AliasChoices, BaseModel, BeforeValidator, Field, model_validator
from pydantic.json_schema import models_json_schema

from ...http import SCHEMA_REFERENCE, Body, document, json_content

_MOST_FIELDS: Final = 100


def _check_fields(text: Any) -> Any:
    """Refuse a message with more than `_MOST_FIELDS` fields, because each field is validated."""
    if isinstance(text, dict) and len(text) > _MOST_FIELDS:
        raise ValueError(f"a message has at most {_MOST_FIELDS} fields")
    return text


Messages: TypeAlias = Annotated[
    list[dict[str, Any]], Field(fail_fast=True)
]  # else each of a million items makes an error
Text: TypeAlias = Annotated[str | dict[str, Any] | Messages, BeforeValidator(_check_fields)]

_PROMPT = AliasChoices("prompt", "question", "query", "instruction")


def _check_tool(tool: dict[str, Any]) -> dict[str, Any]:
    """Check the fields of a function that templates and formats read; whatever else it has is left to the template."""
    function = tool.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ValueError("a tool needs function.name")
    for name, kind in (("description", str), ("parameters", dict)):
        if not isinstance(function.get(name), kind | None):
            raise ValueError(f"function.{name}: expected {'text' if kind is str else 'an object'}")
    return tool


SomeTool: TypeAlias = Annotated[dict[str, Any], AfterValidator(_check_tool)]


class ScoreRequest(Body):
    """One text to score."""

    prompt: Text | None = Field(default=None, validation_alias=_PROMPT)
    """The question: text, or messages."""
    response: Text | None = Field(default=None, validation_alias=AliasChoices("response", "answer", "completion"))
    """The answer: text, or messages."""
    messages: Messages | None = Field(default=None, min_length=1)
    """The whole conversation, in place of both."""
    tools: Annotated[list[SomeTool], Field(fail_fast=True)] | None = None
    """The tools that the prompt offers, as OpenAI describes functions."""

    @model_validator(mode="after")
    def _one_form(self) -> ScoreRequest:
        if (self.messages is None) == (self.response is None):
            raise ValueError("give either messages, or a prompt and a response")
        if self.response is not None and self.prompt is None and isinstance(self.response, str):
            raise ValueError("a response needs its prompt")
        return self

    def conversation(self) -> Messages:
        """Return the messages of the text."""
        return self.messages if self.messages is not None else _conversation(self.prompt, self.response or "")


class PairRequest(Body):
    """Two answers to one prompt."""

    prompt: Text | None = Field(default=None, validation_alias=_PROMPT)
    """The question; may be left out where both answers are whole conversations."""
    response_a: Text = Field(validation_alias=AliasChoices("response_a", "chosen", "answer_a"))
    """The one answer."""
    response_b: Text = Field(validation_alias=AliasChoices("response_b", "rejected", "answer_b"))
    """The other answer."""
    tools: Annotated[list[SomeTool], Field(fail_fast=True)] | None = None
    """The tools that the prompt offers, as OpenAI describes functions."""

    @model_validator(mode="after")
    def _has_a_prompt(self) -> PairRequest:
        if self.prompt is None and (isinstance(self.response_a, str) or isinstance(self.response_b, str)):
            raise ValueError("give the prompt of both responses")
        return self

    def conversations(self) -> tuple[Messages, Messages]:
        """Return the messages of both texts."""
        return _conversation(self.prompt, self.response_a), _conversation(self.prompt, self.response_b)


class ScoreBatchRequest(Body):
    """Texts to score."""

    items: Annotated[list[ScoreRequest], Field(fail_fast=True)] = Field(min_length=1)
    """The texts."""


class PairBatchRequest(Body):
    """Pairs to compare."""

    items: Annotated[list[PairRequest], Field(fail_fast=True)] = Field(
        min_length=1, validation_alias=AliasChoices("items", "pairs")
    )
    """The pairs."""


class ScoreAnswer(BaseModel):
    """The score of one text."""

    score: float
    """Reward model's score; the more, the better. Only differences mean anything."""
    tokens: int
    """Number of tokens of the text that were read."""
    truncated: bool
    """True if a part of the text was cut off, as the server's truncation says."""


class ScoreBatchAnswer(BaseModel):
    """The scores of texts, in their order."""

    scores: list[float]
    """One for each item."""
    tokens: list[int]
    """Number of tokens of each that were read."""
    truncated: list[bool]
    """True for each text that was cut."""


class PairAnswer(BaseModel):
    """Two answers compared."""

    score_a: float
    """Score of the one answer."""
    score_b: float
    """Score of the other."""
    margin: float
    """`score_a - score_b`; under the Bradley-Terry model, the log-odds that a person prefers the one."""
    preferred: Literal["a", "b", "tie"]
    """The one with the higher score."""
    truncated: bool
    """True if a part of either text was cut off."""


class PairBatchAnswer(BaseModel):
    """Pairs compared, in their order."""

    results: list[PairAnswer]
    """One for each item."""


def _conversation(prompt: Text | None, response: Text) -> Messages:
    return [*_messages(prompt, "user"), *_messages(response, "assistant")]


def _messages(text: Text | None, role: str) -> Messages:
    if text is None:
        return []
    if isinstance(text, str):
        return [{"role": role, "content": text}]
    return [text] if isinstance(text, dict) else text


_QUESTION: Final = "What is 7 x 6?"
_TEXT: Final = {"prompt": _QUESTION, "response": "7 x 6 = 42."}
_CONVERSATION: Final = {
    "messages": [{"role": "user", "content": _QUESTION}, {"role": "assistant", "content": "7 x 6 = 42."}]
}
_PAIR: Final = {"prompt": _QUESTION, "response_a": "7 x 6 = 42.", "response_b": "About forty."}
_ROW: Final = {"prompt": _QUESTION, "chosen": "7 x 6 = 42.", "rejected": "About forty."}

OPERATIONS: Final[dict[str, tuple[str, type[BaseModel], type[BaseModel], dict[str, Any]]]] = {
    "/score": ("Score one text.", ScoreRequest, ScoreAnswer, {"prompt": _TEXT, "messages": _CONVERSATION}),
    "/score-pair": ("Compare two answers to one prompt.", PairRequest, PairAnswer, {"pair": _PAIR, "row": _ROW}),
    "/score/batch": (
        "Score many texts; those that begin alike are computed together.",
        ScoreBatchRequest,
        ScoreBatchAnswer,
        {"batch": {"items": [_TEXT, {**_TEXT, "response": "About forty."}]}},
    ),
    "/score-pair/batch": ("Compare many pairs.", PairBatchRequest, PairBatchAnswer, {"batch": {"items": [_PAIR]}}),
}
"""By path: its summary, its request and response, and examples of requests."""

_FAILURE: Final = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
            "required": ["message", "type"],
        }
    },
    "required": ["error"],
}
_REFUSALS: Final = {
    "400": "The request is wrong; `param` names the field.",
    "401": "The API key is missing or wrong.",
    "413": "The body is too large.",
    "429": "Too much waits already; `Retry-After` says when to come again.",
    "503": "The server is stopping.",
}


def service_document(version: str, model: str, max_body_bytes: int, max_items: int) -> dict[str, Any]:
    """Return the document, as OpenAPI 3.1."""
    pairs: list[Any] = []
    for _, request, answer, _ in OPERATIONS.values():
        pairs += [(request, "validation"), (answer, "serialization")]
    schemas, definitions = models_json_schema(pairs, ref_template=SCHEMA_REFERENCE)
    names = {kind: schema["$ref"] for (kind, _), schema in schemas.items()}
    paths: dict[str, Any] = {
        "/health": {"get": _read("health", "Whether it serves, which model, and how much waits.", "application/json")},
        "/metrics": {"get": _read("metrics", "Metrics for Prometheus.", "text/plain")},
    }
    failure = {"$ref": SCHEMA_REFERENCE.format(model="Failure")}
    for path, (told, request, answer, examples) in OPERATIONS.items():
        content = {"schema": {"$ref": names[request]}, "examples": {k: {"value": v} for k, v in examples.items()}}
        paths[path] = {
            "post": {
                "operationId": path.strip("/").replace("/", "_").replace("-", "_"),
                "summary": told,
                "requestBody": {"required": True, "content": {"application/json": content}},
                "responses": {
                    "200": json_content({"$ref": names[answer]}, "Done."),
                    **{status: json_content(failure, text) for status, text in _REFUSALS.items()},
                },
            }
        }
    return document(
        "mini-agentic-rl reward service",
        version,
        f"Scores of {model}. At most {max_items} items and {max_body_bytes} bytes in one request.",
        paths,
        {**definitions.get("$defs", {}), "Failure": _FAILURE},
    )


def _read(name: str, told: str, media: str) -> dict[str, Any]:
    schema = {"type": "object"} if media == "application/json" else {"type": "string"}
    return {
        "operationId": name,
        "summary": told,
        "security": [],
        "responses": {"200": {"description": "Success.", "content": {media: {"schema": schema}}}},
    }
