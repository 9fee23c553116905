"""Conversations as the token ids that a reward model reads.

The score is read at the last token, so the end of the text matters. A reward model trained by this package reads the
prompt, the answer and the token that ends it, as in training (`rows.prompt_and_answer`). Other decoders read the whole
output of the chat template. A tokenizer without a template, as encoders have, gets prompt and response as a pair.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from ...config import Settings, restated
from ...gateway import ChatRenderer, Message, ServerSettings, Tool, plain_messages
from ...http import BadRequestError, RequestLimits
from ...policy import Dtype, ModelSettings
from ...post_training.rows import prompt_and_answer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Settings. Each field is an option of `score-server`, and its docstring the help text.


Truncation = Literal["left", "right", "refuse"]


class TextLimits(Settings):
    """Bounds on the length of a text."""

    max_length: int | None = Field(default=None, ge=2)
    """Tokens of one text, prompt and response; by default the model's number of positions."""
    truncation: Truncation = "left"
    """Treatment of a longer text: `left` cuts its beginning (the end is where the score is read), `right` its end,
    `refuse` answers with an error. An answer says which texts were cut."""


class BatchSettings(Settings):
    """Bounds on batches and on waiting texts."""

    batch_size: int = Field(default=64, ge=1)
    """At most this many texts in one pass through the model."""
    batch_tokens: int | None = Field(default=None, ge=1)
    """At most this many tokens in one pass, a longer text alone excepted; by default 2048 on a CPU and 16384 on a
    GPU."""
    batch_wait_ms: float = Field(default=5.0, ge=0)
    """Milliseconds that a text waits for others to come along while the model is idle."""
    max_items: int = Field(default=512, ge=1)
    """At most this many texts or pairs in one request."""
    max_queue: int = Field(default=4096, ge=1)
    """At most this many texts wait; then requests are answered with status 429 and the time to wait."""


class ScoreServerSettings(RequestLimits, BatchSettings, TextLimits, ServerSettings):
    """The settings of `score-server`."""

    defaults: ClassVar[Mapping[str, Any]] = {"port": 8001}
    panels: ClassVar[Mapping[str, Sequence[str]]] = {
        "Model": (*TextLimits.model_fields, "model", "dtype", "device"),
        "Batches": tuple(BatchSettings.model_fields),
        "Limits of requests": tuple(RequestLimits.model_fields),
        "Server": tuple(ServerSettings.model_fields),
    }

    model: str = restated(
        ModelSettings,
        "model",
        "",
        "Reward model: the output folder of `reward`, a sequence-classification checkpoint with one label, or a "
        "Hugging Face id.",
    )
    dtype: Dtype = restated(ModelSettings, "dtype", "auto")
    device: str = restated(ModelSettings, "device", "auto")


Reading = Literal["answer", "template", "pair"]
"""Part that a model reads: up to the end of the answer, all that the chat template writes, or a pair of plain texts."""


@dataclass(frozen=True)
class Rendered:
    """One text as a model reads it."""

    ids: tuple[int, ...]
    """Token ids."""
    segments: tuple[int, ...] | None = None
    """For a pair of texts, which of the two each token belongs to."""
    truncated: bool = False
    """True if a part was cut off."""


class Renderer:
    """Render for one tokenizer. Used from one thread at a time.

    Args:
        tokenizer: of the reward model.
        max_length: tokens of the longest text.
        truncation: treatment of longer texts.
        reading: part of the conversation that the model reads.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, max_length: int, truncation: Truncation, reading: Reading
    ) -> None:
        self._tokenizer = tokenizer
        self._max_length = max_length
        self._truncation = truncation
        self.reading = reading
        if reading != "pair":
            self._chat = ChatRenderer(tokenizer)

    def render(self, messages: Sequence[Message], tools: Sequence[Tool] | None = None) -> Rendered:
        """Return the conversation's tokens.

        Raises:
            BadRequestError: the messages are malformed, the template refuses them, or the text is too long or empty.
        """
        if self.reading == "pair":
            rendered = self._pair(plain_messages(messages))
        elif self.reading == "answer":
            rendered = self._cut(self._answered(messages, tools))
        else:
            rendered = self._cut(self._chat.render(messages, tools, add_generation_prompt=False))
        if len(rendered.ids) < 2:
            raise BadRequestError("there is nothing to score: the text has less than two tokens")
        return rendered

    def _answered(self, messages: Sequence[Message], tools: Sequence[Tool] | None) -> list[int]:
        if len(messages) < 2 or messages[-1].get("role") != "assistant":
            raise BadRequestError("the last message must be the assistant's, after a prompt", param="messages")
        example = {"prompt": messages[:-1], "answer": messages[-1:], "tools": tools}
        prompt, answer = prompt_and_answer(self._chat, example, "answer")
        return prompt + answer

    def _cut(self, ids: list[int]) -> Rendered:
        if len(ids) <= self._max_length:
            return Rendered(tuple(ids))
        self._check_refusal(len(ids))
        cut = ids[-self._max_length :] if self._truncation == "left" else ids[: self._max_length]
        return Rendered(tuple(cut), truncated=True)

    def _pair(self, messages: list[dict[str, Any]]) -> Rendered:
        if [message["role"] for message in messages] != ["user", "assistant"]:
            raise BadRequestError(
                "this model's tokenizer has no chat template, so it reads one prompt and one response: "
                "send one user message and one answer",
                param="messages",
            )
        texts = [message["content"] for message in messages]
        # Special tokens inside a text are split: they could end the prompt and forge a response.
        encoded = self._tokenizer(*texts, return_token_type_ids=True, split_special_tokens=True)
        truncated = len(encoded["input_ids"]) > self._max_length
        if truncated:
            self._check_refusal(len(encoded["input_ids"]))
            self._tokenizer.truncation_side = self._truncation
            encoded = self._tokenizer(
                *texts,
                return_token_type_ids=True,
                split_special_tokens=True,
                truncation="longest_first",
                max_length=self._max_length,
            )
        return Rendered(tuple(encoded["input_ids"]), tuple(encoded["token_type_ids"]), truncated)

    def _check_refusal(self, tokens: int) -> None:
        if self._truncation == "refuse":
            raise BadRequestError(
                f"the text has {tokens} tokens, but at most {self._max_length} are read: "
                "shorten it, or serve with another `max_length` or `truncation`",
                code="context_length_exceeded",
            )
