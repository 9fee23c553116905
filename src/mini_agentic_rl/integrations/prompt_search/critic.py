"""The critic: any OpenAI-compatible model that criticises a prompt template, and rewrites it to answer a criticism.

A failed call raises a `CriticError`, which costs one candidate. A refusal that every later call would get too (wrong
key, no such model) raises a `UserError`.
"""

from __future__ import annotations

import asyncio
import re
import string
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from openai import AuthenticationError, NotFoundError, PermissionDeniedError

from ...errors import UserError
from ...types import PromptTemplate
from .state import APOSettings

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_POML_NAME = re.compile(r"\{\{\s*([A-Za-z_]\w*)")
_TAGGED = re.compile(r"<prompt>\n?(.*?)\n?</prompt>", re.DOTALL)
_FENCED = re.compile(r"\A```[\w-]*\n(.*?)\n?```\Z", re.DOTALL)
_ONE_CALL_A_CONNECTION = {"Connection": "close"}
"""An open connection would belong to the event loop of this run and break the client in the next one."""
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

_CRITIQUE = """\
The prompt template:
<template>
{template}
</template>

What the agent did with it:

{transcripts}

{angle}

Write down, in at most five short points, what about the template held the reward back and what a better template would
say instead. Speak about the template in general: no advice that only helps one of the tasks above, and no answers to
them. Do not write the new template."""

_ANGLES = (
    "Begin with the attempts that earned least: find what in the template led to each failure.",
    "Compare the attempts that earned most with those that earned least: find what the template should demand so that "
    "all go like the best.",
    "Look for what the template leaves unsaid: the form of the answer, the steps on the way, what to do in doubt.",
)
"""Points of view of a criticism; children of one parent use different ones."""

_EDIT = """\
The prompt template:
<template>
{template}
</template>

A criticism of it:
<criticism>
{critique}
</criticism>

Rewrite the template so that the criticism no longer applies. {rules}
Answer with the new template between <prompt> and </prompt> and nothing else."""


class CriticError(Exception):
    """The critic gave no usable answer; the message is the reason."""


class Critic:
    """Criticises and rewrites templates.

    Args:
        client: OpenAI client of the endpoint.
        settings: models, temperature, limits.
        seed_prompt: the first prompt, whose placeholders every other must keep.
    """

    def __init__(self, client: AsyncOpenAI, settings: APOSettings, seed_prompt: PromptTemplate) -> None:
        self._client = client
        self._settings = settings
        self._seed_prompt = seed_prompt
        self._turns = asyncio.Semaphore(settings.critic_concurrency)

    async def criticise(self, template: str, transcripts: Sequence[str], angle: int) -> str:
        """Return the textual gradient: a criticism of the template based on transcripts of rollouts.

        Args:
            angle: number of the point of view to take, modulo their count.
        """
        question = _CRITIQUE.format(
            template=template, transcripts="\n\n".join(transcripts), angle=_ANGLES[angle % len(_ANGLES)]
        )
        return await self._answer(self._settings.gradient_model, "gradient_model", _conversation(question))

    async def rewrite(self, template: str, critique: str) -> str:
        """Return the template, rewritten to answer a criticism; it takes the same placeholders."""
        wanted = placeholders(self._seed_prompt)
        rules = _PLACEHOLDERS.format(placeholders=", ".join(wanted)) if wanted else _NO_PLACEHOLDERS
        if self._seed_prompt.engine == "f-string":
            rules += _LITERAL_BRACES
        messages = _conversation(_EDIT.format(template=template, critique=critique, rules=rules))
        reason = ""
        for _ in range(self._settings.edit_attempts):
            answer = await self._answer(self._settings.apply_edit_model, "apply_edit_model", messages)
            rewritten = _template_in(answer)
            problem = why_unusable(self._seed_prompt, rewritten)
            if problem is None:
                return rewritten
            reason = problem
            again = _EDIT_AGAIN.format(reason=reason, rules=rules)
            messages = [*messages, {"role": "assistant", "content": answer}, {"role": "user", "content": again}]
        raise CriticError(f"rewritten template rejected: {reason}")

    async def _answer(self, model: str, setting: str, messages: Sequence[dict[str, str]]) -> str:
        """Return the text that `model` answers with; `setting` is the name of the setting that chose the model."""
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
        except Exception as error:  # transport, rate limits, invalid JSON: costs this candidate only
            raise CriticError(f"{type(error).__name__}: {_one_line(error)}") from error
        if not isinstance(text, str) or not text.strip():
            raise CriticError("empty answer")
        return text.strip()


def _conversation(question: str) -> list[dict[str, str]]:
    """Return the messages of a question."""
    return [{"role": "system", "content": _ROLE}, {"role": "user", "content": question}]


def _template_in(answer: str) -> str:
    """Return the text between the last pair of tags; without tags the whole text, without its code fence."""
    tagged = _TAGGED.findall(answer)
    if tagged:
        return str(tagged[-1])
    fenced = _FENCED.match(answer)
    return fenced[1] if fenced else answer


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def placeholders(prompt: PromptTemplate) -> list[str]:
    """Return the placeholders of a template as they are written, each once."""
    if prompt.engine == "f-string":
        return list(dict.fromkeys(_f_string_fields(prompt.template)))
    names = sorted(_jinja_names(prompt.template)) if prompt.engine == "jinja" else _POML_NAME.findall(prompt.template)
    return [f"{{{{ {name} }}}}" for name in dict.fromkeys(names)]


def why_unusable(original: PromptTemplate, template: str) -> str | None:
    """Return why `template` cannot replace that of `original`; None if it can."""
    if not template.strip():
        return "it is empty"
    try:
        wanted, present = placeholders(original), placeholders(original.model_copy(update={"template": template}))
    except ValueError as error:
        return f"its placeholders cannot be read ({error})"
    lost = [placeholder for placeholder in wanted if placeholder not in present]
    if lost:
        return f"it lost the placeholder {', '.join(lost)}"
    added = [placeholder for placeholder in present if placeholder not in wanted]
    return f"nothing fills in its placeholder {', '.join(added)}" if added else None


def _f_string_fields(template: str) -> Iterator[str]:
    for _, field, spec, conversion in string.Formatter().parse(template):
        if field is not None:
            yield "{" + field + (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "") + "}"
            yield from _f_string_fields(spec or "")


def _jinja_names(template: str) -> set[str]:
    from jinja2 import TemplateSyntaxError
    from jinja2.meta import find_undeclared_variables
    from jinja2.sandbox import SandboxedEnvironment

    environment = SandboxedEnvironment()
    try:
        environment.from_string(template)  # also refuses filters that do not exist
        return find_undeclared_variables(environment.parse(template))
    except TemplateSyntaxError as error:
        raise ValueError(f"line {error.lineno}: {error.message}") from error
