"""Resources: the named, versioned things that an algorithm tunes and an agent uses."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias
from urllib.parse import urlsplit, urlunsplit

from pydantic import BaseModel, Field, model_validator

OPENAI_ENDPOINT: Final = "https://api.openai.com/v1"


class Resource(BaseModel):
    """Anything an algorithm can hand to an agent under a name."""

    resource_type: Any


class LLM(Resource):
    """An OpenAI-compatible endpoint and the model to ask for there."""

    resource_type: Literal["llm"] = "llm"
    endpoint: str = Field(default=OPENAI_ENDPOINT, description="Base URL, ending in /v1 as a rule.")
    model: str = Field(description='Model name to send; `name="openai/…"` is another way to give it.')
    api_key: str | None = Field(default=None, description="API key; None where the endpoint needs none.")
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
    """An endpoint behind our gateway: each attempt of each rollout has its own URL there."""

    resource_type: Literal["proxy_llm"] = "proxy_llm"  # type: ignore[assignment]  # the tag of the union below
    endpoint: str = Field(description="Base URL of the gateway.")

    def get_base_url(self, rollout_id: str | None = None, attempt_id: str | None = None, *_: Any) -> str:
        """Return the rollout's own URL, `…/rollout/{rollout_id}/attempt/{attempt_id}/v1`; the plain one without ids.

        Raises:
            ValueError: only one of the two ids was given.
        """
        if rollout_id is None and attempt_id is None:
            return self.endpoint
        if not rollout_id or not attempt_id:
            raise ValueError("ProxyLLM.get_base_url needs both rollout_id and attempt_id, or neither")
        scheme, netloc, path, query, fragment = urlsplit(self.endpoint)
        root = path.rstrip("/").removesuffix("/v1")
        return urlunsplit((scheme, netloc, f"{root}/rollout/{rollout_id}/attempt/{attempt_id}/v1", query, fragment))

    def for_rollout(self, rollout_id: str, attempt_id: str) -> LLM:
        """Return a plain `LLM` whose endpoint is the rollout's own URL."""
        return LLM(
            endpoint=self.get_base_url(rollout_id, attempt_id),
            model=self.model,
            api_key=self.api_key,
            sampling_parameters=dict(self.sampling_parameters),
        )


class PromptTemplate(Resource):
    """A prompt that an algorithm may rewrite."""

    resource_type: Literal["prompt_template"] = "prompt_template"
    template: str = Field(description="The template's text.")
    engine: Literal["jinja", "f-string", "poml"] = Field(default="f-string", description="Language of the template.")

    def format(self, **values: Any) -> str:
        """Return the template with `values` filled in.

        Raises:
            KeyError: an f-string template names a value that was not given.
            ImportError: the engine's package is not installed.
        """
        if self.engine == "f-string":
            return self.template.format(**values)
        if self.engine == "jinja":
            from jinja2.sandbox import SandboxedEnvironment

            return SandboxedEnvironment().from_string(self.template).render(**values)
        import poml  # type: ignore[import-not-found,unused-ignore]  # optional, named in the ImportError it raises

        return str(poml.poml(self.template, context=values, format="raw"))


ResourceUnion: TypeAlias = Annotated[LLM | ProxyLLM | PromptTemplate, Field(discriminator="resource_type")]
NamedResources: TypeAlias = dict[str, ResourceUnion]


class ResourcesUpdate(BaseModel):
    """One stored version of a set of resources."""

    resources_id: str
    create_time: float = Field(description="Seconds since the epoch.")
    update_time: float = Field(description="Seconds since the epoch.")
    version: int = Field(description="Counts the updates of this set, from 1.")
    resources: NamedResources
