"""Requests and responses of the reward service, and its OpenAPI document.

Fields have the names that reward data and reward services use, so a row of a preference data set can be sent as it
is: `prompt` or `question`, `response` or `answer` or `completion`, `response_a` and `response_b` or `chosen` and
`rejected`. A prompt or a response is text, one message, or a list of messages.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import AfterValidator, AliasChoices, BaseModel, BeforeValidator, Field, model_validator
from pydantic.json_schema import models_json_schema

from ...http import Body

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
    """Check the fields that chat templates and tool formats read."""
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
    """The question; optional if both answers are whole conversations."""
    response_a: Text = Field(validation_alias=AliasChoices("response_a", "chosen", "answer_a"))
    """The first answer."""
    response_b: Text = Field(validation_alias=AliasChoices("response_b", "rejected", "answer_b"))
    """The second answer."""
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
    """Score of the reward model. Only differences between scores have a meaning."""
    tokens: int
    """Number of tokens of the text that were read."""
    truncated: bool
    """True if a part of the text was cut off."""


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
    """Score of the first answer."""
    score_b: float
    """Score of the second answer."""
    margin: float
    """`score_a - score_b`; under the Bradley-Terry model, the log-odds that a person prefers the first."""
    preferred: Literal["a", "b", "tie"]
    """The answer with the higher score."""
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


OPERATIONS: Final[dict[str, tuple[str, type[BaseModel], type[BaseModel]]]] = {
    "/score": ("Score one text.", ScoreRequest, ScoreAnswer),
    "/score-pair": ("Compare two answers to one prompt.", PairRequest, PairAnswer),
    "/score/batch": ("Score many texts; common beginnings are computed once.", ScoreBatchRequest, ScoreBatchAnswer),
    "/score-pair/batch": ("Compare many pairs.", PairBatchRequest, PairBatchAnswer),
}
"""By path: its summary, its request and its response."""


def service_document(version: str, model: str, max_body_bytes: int, max_items: int) -> dict[str, Any]:
    """Return the document, as OpenAPI 3.1."""
    pairs: list[Any] = []
    for _, request, answer in OPERATIONS.values():
        pairs += [(request, "validation"), (answer, "serialization")]
    schemas, definitions = models_json_schema(pairs, ref_template="#/components/schemas/{model}")
    references = {kind: {"$ref": schema["$ref"]} for (kind, _), schema in schemas.items()}
    paths: dict[str, Any] = {
        path: {
            "post": {
                "summary": summary,
                "requestBody": {"required": True, "content": {"application/json": {"schema": references[request]}}},
                "responses": {
                    "200": {"description": "Done.", "content": {"application/json": {"schema": references[answer]}}}
                },
            }
        }
        for path, (summary, request, answer) in OPERATIONS.items()
    }
    for path, summary in (("/health", "State, model and queue."), ("/metrics", "Metrics for Prometheus.")):
        paths[path] = {"get": {"summary": summary, "security": [], "responses": {"200": {"description": "Success."}}}}
    bounds = f"At most {max_items} items and {max_body_bytes} bytes in one request."
    components = {
        "schemas": definitions.get("$defs", {}),
        "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "mini-agentic-rl reward service",
            "version": version,
            "description": f"Scores of {model}. {bounds}",
        },
        "paths": paths,
        "components": components,
        "security": [{"key": []}, {}],
    }
