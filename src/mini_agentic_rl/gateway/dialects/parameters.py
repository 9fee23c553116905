"""Request fields of vLLM, SGLang and llama.cpp that OpenAI's API lacks or spells differently.

A field is served, refused by name, or reported in the answer's header `X-Ignored-Parameters`; none is dropped silently.
The many spellings of the form of an answer are read as one `AnswerForm`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import ConfigDict, Field, model_validator

from ...http import BadRequestError, Body, json_object

FormKind = Literal["json", "regex", "choice", "grammar"]
Schema: TypeAlias = dict[str, Any] | str
"""A JSON schema, or its JSON text."""
Choices = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1, fail_fast=True)]
Text = Annotated[str, Field(min_length=1)]


@dataclass(frozen=True)
class AnswerForm:
    """The form of an answer: JSON with a schema, text with a regular expression or grammar, or one of several texts."""

    kind: FormKind
    value: Any
    """A schema (None for any object), a regular expression, texts, or a grammar in GBNF or in Lark."""
    strict: bool
    """True if the whole schema must hold; otherwise keywords that the grammar cannot express are ignored."""
    field: str
    """The field of the request."""


class JsonSchemaFormat(Body):
    """The schema of the answer; without one any object is allowed."""

    json_schema: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    """OpenAI's form of the answer. llama.cpp has the schema beside the type, as `schema`."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: JsonSchemaFormat | None = None
    beside: dict[str, Any] | None = Field(default=None, alias="schema")

    @model_validator(mode="after")
    def _consistent(self) -> ResponseFormat:
        schemas = [self.json_schema, self.beside]
        if self.type == "json_schema" and schemas == [None, None]:
            raise ValueError("type 'json_schema' needs json_schema, an object that holds the schema")
        if self.type == "text" and schemas != [None, None]:
            raise ValueError("type 'text' takes no schema; send type 'json_schema'")
        return self

    @property
    def form(self) -> AnswerForm | None:
        """The form; None for text."""
        if self.type == "text":
            return None
        if self.beside is not None:
            return AnswerForm("json", self.beside, True, "response_format.schema")
        if self.json_schema is None or self.json_schema.json_schema is None:
            return AnswerForm("json", None, True, "response_format")
        strict = bool(self.json_schema.strict)
        return AnswerForm("json", self.json_schema.json_schema, strict, "response_format.json_schema.schema")


class StructuredOutputs(Body):
    """The form of the answer as in vLLM. Other fields of vLLM are refused unless they are null or false."""

    model_config = ConfigDict(extra="forbid")

    json_schema: Schema | None = Field(default=None, alias="json")
    regex: Text | None = None
    choice: Choices | None = None
    grammar: Text | None = None
    json_object: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_unset(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        return {name: item for name, item in value.items() if item is not None and item is not False}


_FIELDS: Final[Mapping[FormKind, tuple[str, ...]]] = {
    "json": ("guided_json", "json_schema"),
    "regex": ("guided_regex", "regex"),
    "choice": ("guided_choice", "choice"),
    "grammar": ("guided_grammar", "grammar", "ebnf"),
}
"""Fields of a request, and of `StructuredOutputs`, for each kind of form."""


class FormFields(Body):
    """The fields of a chat request that set the form of the answer."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | None = None
    guided_regex: Text | None = None
    guided_choice: Choices | None = None
    guided_grammar: Text | None = None
    json_schema: Schema | None = None
    grammar: Text | None = None
    regex: Text | None = None
    ebnf: Text | None = None
    _form: AnswerForm | None = None

    @property
    def form(self) -> AnswerForm | None:
        """The form of the answer; None if it is free."""
        return self._form

    @model_validator(mode="after")
    def _one_form(self) -> FormFields:
        forms = list(_forms(self, ""))
        if self.response_format is not None and self.response_format.form is not None:
            forms.insert(0, self.response_format.form)
        if self.structured_outputs is not None:
            within = list(_forms(self.structured_outputs, "structured_outputs."))
            if self.structured_outputs.json_object:
                within.append(AnswerForm("json", None, True, "structured_outputs.json_object"))
            if not within:
                raise BadRequestError("structured_outputs: no form of the answer is set", param="structured_outputs")
            forms += within
        if len(forms) > 1:
            fields = [form.field for form in forms]
            raise BadRequestError(
                f"{' and '.join(fields)} each set the form of the answer: send one of them", param=fields[-1]
            )
        self._form = forms[0] if forms else None
        return self


def _forms(fields: Body, where: str) -> Iterator[AnswerForm]:
    """Yield the forms in the fields of `_FIELDS`; raises BadRequestError for text that is not a JSON schema."""
    for kind, name in [(kind, name) for kind, names in _FIELDS.items() for name in names]:
        value = getattr(fields, name, None)
        if value is None:
            continue
        field = where + (type(fields).model_fields[name].alias or name)
        if kind == "json" and isinstance(value, str):
            try:
                value = json_object(value.encode("utf-8", "replace"), finite=True)
            except BadRequestError as error:
                raise BadRequestError(f"{field}: expected a JSON schema: {error.message}", param=field) from None
        yield AnswerForm(kind, value, True, field)


SERVED: Final = frozenset(
    """seed top_k min_p logit_bias presence_penalty frequency_penalty repetition_penalty repeat_penalty min_tokens
    stop_token_ids ignore_eos return_token_ids structured_outputs guided_json guided_regex guided_choice guided_grammar
    json_schema grammar regex ebnf""".split()  # noqa: SIM905
)
"""Sampling options and forms of answers with the same meaning in every dialect."""

TEMPLATE: Final = frozenset({"chat_template_kwargs", "enable_thinking"})
"""Settings of the chat template, for the dialects of conversations."""

_INDIFFERENT: Final = frozenset(
    """user metadata store service_tier safety_identifier prompt_cache_key prompt_cache_retention prediction
    request_id rid priority cache_salt cache_prompt id_slot guided_decoding_backend spaces_between_special_tokens
    stream_reasoning timings_per_token return_progress mirostat_tau mirostat_eta dynatemp_exponent xtc_threshold
    dry_base dry_allowed_length dry_penalty_last_n dry_sequence_breakers""".split()  # noqa: SIM905
)
"""Fields that do not change the answer: accounting, caches, and details of sampling methods that are refused."""

_NOTHING: Final[tuple[Any, ...]] = (None, False, 0, 0.0, "", [], {})
_NOT_SERVED: Final[Mapping[str, tuple[Any, ...]]] = {
    **dict.fromkeys(
        """use_beam_search echo include_stop_str_in_output bad_words allowed_token_ids logits_processors
        logits_processor custom_logit_processor custom_params documents chat_template structural_tag
        guided_whitespace_pattern return_tokens_as_token_ids return_hidden_states stop_regex no_stop_trim lora_path
        lora session_params mm_processor_kwargs media_io_kwargs thinking_token_budget kv_transfer_params vllm_xargs
        mirostat dynatemp_range xtc_probability dry_multiplier n_probs post_sampling_probs samplers t_max_predict_ms
        n_predict top_a audio mcp_servers functions function_call""".split(),  # noqa: SIM905
        _NOTHING,
    ),
    "prompt_logprobs": (None, False),
    "web_search_options": (None,),
    "modalities": (None, [], ["text"]),
    "best_of": (None, 1),
    "skip_special_tokens": (None, True),
    "include_reasoning": (None, True),
    "separate_reasoning": (None, True),
    "add_special_tokens": (None, False),
    "truncate_prompt_tokens": (None, -1),
    "repeat_last_n": (None, -1),
    "length_penalty": (None, 1, 1.0),
    "typical_p": (None, 0, 1, 1.0),
    "tfs_z": (None, 1, 1.0),
    "top_n_sigma": (None, -1, -1.0, 0),
}
"""Known fields that are not served, with the values that have no effect."""


def passed_on(body: Mapping[str, Any], but: Collection[str] = ()) -> dict[str, Any]:
    """Return the fields of a body that are copied to the chat request, except `but`, which the dialect reads."""
    return {
        name: value
        for name, value in body.items()
        if value is not None and name not in but and (name in SERVED or name in TEMPLATE or name in _NOT_SERVED)
    }


def refuse_not_served(body: Mapping[str, Any]) -> None:
    """Raise a BadRequestError that names the field if a chat request has an option that is not served."""
    for name, value in body.items():
        if name in _NOT_SERVED and not any(
            type(value) is type(neutral) and value == neutral for neutral in _NOT_SERVED[name]
        ):
            instead = "send tools" if name in ("functions", "function_call") else "leave it out"
            raise BadRequestError(f"{name} is not served here: {instead}", param=name)


def unknown_fields(body: Mapping[str, Any], known: Collection[str]) -> list[str]:
    """Return the fields of a body that are unknown, given the fields of its dialect."""
    others = (known, SERVED, TEMPLATE, _NOT_SERVED, _INDIFFERENT)
    return [name for name, value in body.items() if value is not None and not any(name in names for names in others)]
