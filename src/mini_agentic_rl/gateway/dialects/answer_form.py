"""The form that a request asks of its answer, in the fields of OpenAI, vLLM (old and new), SGLang and llama.cpp."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import ConfigDict, Field, model_validator

from ...http import BadRequestError, Body, json_object

FormKind = Literal["json", "regex", "choice", "grammar"]
Schema: TypeAlias = dict[str, Any] | str
"""A JSON schema, or its JSON text."""
Choices = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1, fail_fast=True)]
Text = Annotated[str, Field(min_length=1)]


@dataclass(frozen=True)
class AnswerForm:
    """What an answer has to be: JSON by a schema, text by a regular expression or a grammar, or one of some texts."""

    kind: FormKind
    value: Any
    """A schema (None for any object), a regular expression, texts, or a grammar in GBNF or in Lark."""
    strict: bool
    """True if all of a schema must hold; else keywords that cannot be checked while sampling are left out."""
    field: str
    """The place in the request that asks for it."""


class JsonSchemaFormat(Body):
    """The schema that the answer has to obey; without one it is any object."""

    json_schema: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    """The wanted form of the answer. llama.cpp has the schema beside the type, as `schema`."""

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
    """The form as vLLM has it now; fields that it has beside these are refused unless they ask for nothing."""

    model_config = ConfigDict(extra="forbid")

    json_schema: Schema | None = Field(default=None, alias="json")
    regex: Text | None = None
    choice: Choices | None = None
    grammar: Text | None = None
    json_object: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _asked(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        return {name: item for name, item in value.items() if item is not None and item is not False}

    def forms(self) -> Iterator[AnswerForm]:
        """Yield each form that is asked for."""
        where = "structured_outputs"
        yield from _given("json", self.json_schema, f"{where}.json")
        yield from _given("regex", self.regex, f"{where}.regex")
        yield from _given("choice", self.choice, f"{where}.choice")
        yield from _given("grammar", self.grammar, f"{where}.grammar")
        if self.json_object:
            yield AnswerForm("json", None, True, f"{where}.json_object")


class FormFields(Body):
    """The fields of a chat request that ask for a form."""

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

    @model_validator(mode="after")
    def _one_form(self) -> FormFields:
        forms = list(self._forms())
        if len(forms) > 1:
            fields = [form.field for form in forms]
            raise BadRequestError(f"{' and '.join(fields)} ask for one form each: send one of them", param=fields[1])
        self._form = forms[0] if forms else None
        if self.structured_outputs is not None and not forms:
            raise BadRequestError("structured_outputs: it asks for no form", param="structured_outputs")
        return self

    @property
    def form(self) -> AnswerForm | None:
        """The form that the answer has to take; None where that is free."""
        return self._form

    def _forms(self) -> Iterator[AnswerForm]:
        if self.response_format is not None and self.response_format.form is not None:
            yield self.response_format.form
        if self.structured_outputs is not None:
            yield from self.structured_outputs.forms()
        for field in ("guided_json", "json_schema"):
            yield from _given("json", getattr(self, field), field)
        for field in ("guided_regex", "regex"):
            yield from _given("regex", getattr(self, field), field)
        for field in ("guided_grammar", "grammar", "ebnf"):
            yield from _given("grammar", getattr(self, field), field)
        yield from _given("choice", self.guided_choice, "guided_choice")


def _given(kind: FormKind, value: Any, field: str) -> Iterator[AnswerForm]:
    """Yield the form that a field asks for, if it is set.

    Raises:
        BadRequestError: text that should be a JSON schema is none.
    """
    if value is None:
        return
    if kind == "json" and isinstance(value, str):
        try:
            value = json_object(value.encode("utf-8", "replace"), finite=True)
        except BadRequestError as error:
            raise BadRequestError(f"{field}: expected a JSON schema: {error.message}", param=field) from None
    yield AnswerForm(kind, value, True, field)
