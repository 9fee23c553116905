"""The writer: any OpenAI-compatible model that reads what came of a prompt template and writes another.

Whatever its endpoint does wrong becomes a `CriticError` with a reason, so that one bad answer costs one candidate. Only
a refusal that no later call can escape (wrong key, no such model) is a `UserError`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from openai import AuthenticationError, NotFoundError, PermissionDeniedError

from ...errors import UserError
from ...types import PromptTemplate
from .placeholders import placeholders, why_unusable
from .settings import PromptSearchSettings

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_TAGGED = re.compile(r"<prompt>\n?(.*?)\n?</prompt>", re.DOTALL)
_FENCED = re.compile(r"\A```[\w-]*\n(.*?)\n?```\Z", re.DOTALL)
_ONE_CALL_A_CONNECTION = {"Connection": "close"}
"""A connection kept open would belong to the event loop of this run, and break the client in the next one."""
_REFUSALS = (AuthenticationError, PermissionDeniedError, NotFoundError)

_ROLE = """\
You improve the prompt template of an AI agent. The agent fills in the placeholders of the template with a task and
follows the result. Each attempt at a task earns a reward; higher is better."""

_EDIT_AGAIN = """\
That template cannot be used: {reason}. {rules}
Answer with a template that can, between <prompt> and </prompt> and nothing else."""

_NO_PLACEHOLDERS = "It has no placeholders, and the new one must have none either."

_PLACEHOLDERS = (
    "Keep each of the placeholders {placeholders} exactly as it is written, at least once, "
    "and add no other placeholder."
)

_LITERAL_BRACES = " Write a brace that is meant as such twice: {{ and }}."


class CriticError(Exception):
    """Report that the critic gave nothing that can be used; the message says why."""


class Writer:
    """Writes templates that can stand in for the first one.

    Args:
        client: OpenAI client of the endpoint.
        settings: models, temperature, limits.
        seed_prompt: the template of the first prompt, whose placeholders every other must keep.
    """

    def __init__(self, client: AsyncOpenAI, settings: PromptSearchSettings, seed_prompt: PromptTemplate) -> None:
        self._client = client
        self._settings = settings
        self._seed_prompt = seed_prompt
        self._turns = asyncio.Semaphore(settings.critic_concurrency)

    async def written(self, model: str, setting: str, question: Callable[[str], str]) -> str:
        """Return the template that a model answers a question with; it takes the same placeholders.

        Args:
            model: its name at the endpoint.
            setting: the setting that chose it.
            question: makes the question, from the rules that a template has to follow.

        Raises:
            CriticError: there is no usable answer.
            UserError: the endpoint refuses every call.
        """
        rules = self._rules()
        messages = conversation(question(rules))
        reason = ""
        for _ in range(self._settings.edit_attempts):
            answer = await self.answer(model, setting, messages)
            rewritten = _template_in(answer)
            problem = why_unusable(self._seed_prompt, rewritten)
            if problem is None:
                return rewritten
            reason = problem
            again = _EDIT_AGAIN.format(reason=reason, rules=rules)
            messages = [*messages, {"role": "assistant", "content": answer}, {"role": "user", "content": again}]
        raise CriticError(f"rewritten template rejected: {reason}")

    def _rules(self) -> str:
        wanted = placeholders(self._seed_prompt)
        rules = _PLACEHOLDERS.format(placeholders=", ".join(wanted.values())) if wanted else _NO_PLACEHOLDERS
        return rules + (_LITERAL_BRACES if self._seed_prompt.engine == "f-string" else "")

    async def answer(self, model: str, setting: str, messages: Sequence[dict[str, str]]) -> str:
        """Return the text that a model answers with; arguments and errors are those of `written`."""
        options: dict[str, Any] = {
            "timeout": self._settings.critic_timeout,
            "extra_headers": _ONE_CALL_A_CONNECTION,
        }
        if self._settings.diversity_temperature is not None:
            options["temperature"] = self._settings.diversity_temperature
        try:
            async with self._turns:
                completion: Any = await self._client.chat.completions.create(
                    model=model,
                    messages=list(messages),  # type: ignore[arg-type]  # plain dictionaries are what it sends
                    **options,
                )
            text = completion.choices[0].message.content
        except _REFUSALS as error:
            raise UserError(
                f"the critic refuses {model!r} at {self._client.base_url}: {_one_line(error)}; "
                f"check `{setting}` and the client's `api_key` and `base_url`",
                setting=setting,
            ) from error
        except (AttributeError, LookupError, TypeError) as error:
            raise CriticError("malformed answer: it holds no message") from error
        except RuntimeError as error:
            if "event loop" not in str(error):
                raise CriticError(f"RuntimeError: {_one_line(error)}") from error
            raise UserError(
                "the client of the search is in use in another event loop, as that of an agent: connections belong to "
                "one; give the search an AsyncOpenAI of its own"
            ) from error
        except Exception as error:  # the transport, rate limits, what is no JSON: each costs this candidate alone
            raise CriticError(f"{type(error).__name__}: {_one_line(error)}") from error
        if not isinstance(text, str) or not text.strip():
            raise CriticError("empty answer")
        return text.strip()


def conversation(question: str) -> list[dict[str, str]]:
    """Return the messages of a question."""
    return [{"role": "system", "content": _ROLE}, {"role": "user", "content": question}]


def _template_in(answer: str) -> str:
    """Return the text between the last pair of tags; without tags all of it, out of a code fence if it stands in
    one."""
    tagged = _TAGGED.findall(answer)
    if tagged:
        return str(tagged[-1])
    fenced = _FENCED.match(answer)
    return fenced[1] if fenced else answer


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
