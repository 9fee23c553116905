"""Resources: named, versioned objects that an algorithm tunes and an agent uses."""

from __future__ import annotations

import re
import string
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias
from urllib.parse import urlsplit, urlunsplit

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ..errors import MissingPackageError, UserError
from ..redaction import without_secrets_within
from .core import AttemptedRollout

OPENAI_ENDPOINT: Final = "https://api.openai.com/v1"


class Resource(BaseModel):
    """Base of the objects that an algorithm gives to an agent under a name."""

    model_config = ConfigDict(hide_input_in_errors=True)

    resource_type: Any

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Show the fields without the passwords and keys of URLs and settings."""
        for name, value in super().__repr_args__():
            yield name, without_secrets_within(value)


class LLM(Resource):
    """An OpenAI-compatible endpoint and the name of a model there."""

    resource_type: Literal["llm"] = "llm"
    endpoint: str = Field(default=OPENAI_ENDPOINT, description="Base URL, ending in /v1 as a rule.")
    model: str = Field(description='Model name to send; `name="openai/…"` is another way to give it.')
    api_key: str | None = Field(default=None, repr=False, description="API key; None where the endpoint needs none.")
    sampling_parameters: dict[str, Any] = Field(
        default_factory=dict, description="Keyword arguments for the completion call (temperature, max_tokens, ...)."
    )

    @model_validator(mode="before")
    @classmethod
    def _named(cls, values: Any) -> Any:
        """Take `name` as the model, with or without the provider."""
        if isinstance(values, dict) and "name" in values and "model" not in values:
            rest = {key: value for key, value in values.items() if key != "name"}
            return {**rest, "model": str(values["name"]).removeprefix("openai/")}
        return values

    def get_base_url(self, *_: Any) -> str:
        """Return the URL to give an OpenAI client as `base_url`."""
        return self.endpoint


class ProxyLLM(LLM):
    """An endpoint of our gateway, with a URL of its own for each attempt of each rollout."""

    resource_type: Literal["proxy_llm"] = "proxy_llm"  # type: ignore[assignment]  # the tag of the union below
    endpoint: str = Field(description="Base URL of the gateway.")

    def get_base_url(self, rollout_id: str | None = None, attempt_id: str | None = None, *_: Any) -> str:
        """Return the rollout's own URL, `…/rollout/{rollout_id}/attempt/{attempt_id}/v1`; the plain one without ids.

        Raises:
            ValueError: only one of the two ids was given, or one is not a string.
        """
        if rollout_id is None and attempt_id is None:
            return self.endpoint
        if not (isinstance(rollout_id, str) and rollout_id and isinstance(attempt_id, str) and attempt_id):
            raise ValueError(
                "ProxyLLM.get_base_url needs rollout_id and attempt_id, both as text, or neither; given: "
                f"{rollout_id!r}, {attempt_id!r}"
            )
        scheme, netloc, path, query, fragment = urlsplit(self.endpoint)
        root = path.rstrip("/").removesuffix("/v1")
        return urlunsplit((scheme, netloc, f"{root}/rollout/{rollout_id}/attempt/{attempt_id}/v1", query, fragment))

    def with_attempted_rollout(self, rollout: AttemptedRollout) -> LLM:
        """Return a plain `LLM` whose endpoint is the URL of the rollout's attempt."""
        return self.for_rollout(rollout.rollout_id, rollout.attempt.attempt_id)

    def for_rollout(self, rollout_id: str, attempt_id: str) -> LLM:
        """Return a plain `LLM` whose endpoint is the rollout's own URL."""
        return LLM(
            endpoint=self.get_base_url(rollout_id, attempt_id),
            model=self.model,
            api_key=self.api_key,
            sampling_parameters=dict(self.sampling_parameters),
        )


MAX_WIDTH: Final = 10_000
"""Largest width, and precision, to which an f-string template may format a value."""


class PromptTemplateError(UserError, KeyError, ValueError):
    """Report that a template of the engine "f-string" cannot be filled in."""

    def __init__(self, problem: str) -> None:
        super().__init__(
            f"{problem}; where braces are text, as in a JSON example, double them in the template: {{{{ and }}}}"
        )


class _BoundedFormatter(string.Formatter):
    """`str.format` for untrusted templates."""

    def parse(self, format_string: str) -> Iterator[tuple[str, str | None, str | None, str | None]]:
        try:
            yield from super().parse(format_string)
        except ValueError as error:
            raise PromptTemplateError(f"the template's braces do not match: {error}") from None

    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if key not in kwargs:
            given = ", ".join(kwargs) or "none"
            raise PromptTemplateError(
                f"the template asks for a value {str(key).strip()[:60]!r}; the values given are: {given}"
            )
        return kwargs[str(key)]

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if "._" in field_name:
            raise ValueError(f"a template may not read {field_name[:60]}: names that begin with _ are private")
        try:
            return super().get_field(field_name, args, kwargs)
        except (AttributeError, IndexError, TypeError) as error:
            raise PromptTemplateError(f"the template's value {field_name[:60]!r} cannot be read: {error}") from None

    def format_field(self, value: Any, format_spec: str) -> str:
        if any(len(digits) > 9 or int(digits) > MAX_WIDTH for digits in re.findall(r"\d+", format_spec)):
            raise ValueError(f"a template may not pad to {format_spec[:60]}: {MAX_WIDTH} characters at most")
        return str(super().format_field(value, format_spec))


class PromptTemplate(Resource):
    """A prompt that an algorithm may rewrite."""

    resource_type: Literal["prompt_template"] = "prompt_template"
    template: str = Field(description="The template's text.")
    engine: Literal["jinja", "f-string", "poml"] = Field(default="f-string", description="Language of the template.")

    def format(self, **values: Any) -> str:
        """Return the template with `values` filled in.

        Raises:
            PromptTemplateError: an f-string template names a value that was not given, or its braces do not match. It
                is a KeyError and a ValueError.
            ValueError: the template is invalid, pads a value to more than `MAX_WIDTH` characters, or reads a private
                attribute: models write templates, and `{task.__class__…}` would expose this process.
            MissingPackageError: the engine's package is not installed.
        """
        if self.engine == "f-string":
            return _BoundedFormatter().vformat(self.template, (), values)
        if self.engine == "jinja":
            from jinja2.sandbox import SandboxedEnvironment

            return SandboxedEnvironment().from_string(self.template).render(**values)
        try:
            import poml  # type: ignore[import-not-found,unused-ignore]  # optional
        except ImportError as error:
            raise MissingPackageError("a template of the engine 'poml'", "poml") from error
        return str(poml.poml(self.template, context=values, format="raw"))


ResourceUnion: TypeAlias = Annotated[LLM | ProxyLLM | PromptTemplate, Field(discriminator="resource_type")]
NamedResources: TypeAlias = dict[str, ResourceUnion]


class ResourcesUpdate(BaseModel):
    """One stored version of a set of resources."""

    model_config = ConfigDict(hide_input_in_errors=True)

    resources_id: str
    create_time: float = Field(description="Seconds since the epoch.")
    update_time: float = Field(description="Seconds since the epoch.")
    version: int = Field(description="Counts the updates of this set, from 1.")
    resources: NamedResources
