"""What clients send and get: texts to score, pairs to compare, and lists of either.

Fields have the names that reward data and reward services use, so a row of a preference data set can be sent as it
is: `prompt` or `question`, `response` or `answer` or `completion`, `response_a` and `response_b` or `chosen` and
`rejected`. A prompt or a response is text, one message, or a list of messages.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from pydantic import AliasChoices, BaseModel, Field, model_validator

from ...http import Body

Messages: TypeAlias = list[dict[str, Any]]
Text: TypeAlias = str | dict[str, Any] | Messages

_PROMPT = AliasChoices("prompt", "question", "query", "instruction")


class ScoreRequest(Body):
    """One text to score."""

    prompt: Text | None = Field(default=None, validation_alias=_PROMPT)
    """What was asked: text, or messages."""
    response: Text | None = Field(default=None, validation_alias=AliasChoices("response", "answer", "completion"))
    """What was answered: text, or messages."""
    messages: Messages | None = Field(default=None, min_length=1)
    """The whole conversation, in place of both."""
    tools: list[dict[str, Any]] | None = None
    """The tools that the prompt offers, as OpenAI describes functions."""

    @model_validator(mode="after")
    def _one_form(self) -> ScoreRequest:
        if (self.messages is None) == (self.response is None):
            raise ValueError("give either messages, or a prompt and a response")
        if self.response is not None and self.prompt is None and isinstance(self.response, str):
            raise ValueError("a response needs its prompt")
        return self

    def conversation(self) -> Messages:
        """The messages of the text."""
        return self.messages if self.messages is not None else _conversation(self.prompt, self.response or "")


class PairRequest(Body):
    """Two answers to one prompt."""

    prompt: Text | None = Field(default=None, validation_alias=_PROMPT)
    """What was asked; may be left out where both answers are whole conversations."""
    response_a: Text = Field(validation_alias=AliasChoices("response_a", "chosen", "answer_a"))
    """The one answer."""
    response_b: Text = Field(validation_alias=AliasChoices("response_b", "rejected", "answer_b"))
    """The other answer."""
    tools: list[dict[str, Any]] | None = None
    """The tools that the prompt offers, as OpenAI describes functions."""

    @model_validator(mode="after")
    def _has_a_prompt(self) -> PairRequest:
        if self.prompt is None and (isinstance(self.response_a, str) or isinstance(self.response_b, str)):
            raise ValueError("give the prompt of both responses")
        return self

    def conversations(self) -> tuple[Messages, Messages]:
        """The messages of both texts."""
        return _conversation(self.prompt, self.response_a), _conversation(self.prompt, self.response_b)


class ScoreBatchRequest(Body):
    """Texts to score."""

    items: list[ScoreRequest] = Field(min_length=1)
    """The texts."""


class PairBatchRequest(Body):
    """Pairs to compare."""

    items: list[PairRequest] = Field(min_length=1, validation_alias=AliasChoices("items", "pairs"))
    """The pairs."""


class ScoreAnswer(BaseModel):
    """The score of one text."""

    score: float
    """What the reward model says; the more, the better. Only differences mean anything."""
    tokens: int
    """Tokens of the text that were read."""
    truncated: bool
    """Whether a part of the text was cut off, as the server's truncation says."""


class ScoreBatchAnswer(BaseModel):
    """The scores of texts, in their order."""

    scores: list[float]
    """One for each item."""
    tokens: list[int]
    """Tokens of each that were read."""
    truncated: list[bool]
    """Of which a part was cut off."""


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
    """Whether a part of either text was cut off."""


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
