"""The form that a request asks of its answer, in the fields of OpenAI, vLLM (old and new), SGLang and llama.cpp."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
    """Form of an answer: JSON by a schema, text by a regular expression or a grammar, or one of some texts."""

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


_FIELDS: Final[Mapping[FormKind, tuple[str, ...]]] = {
    "json": ("guided_json", "json_schema"),
    "regex": ("guided_regex", "regex"),
    "choice": ("guided_choice", "choice"),
    "grammar": ("guided_grammar", "grammar", "ebnf"),
}
"""Fields of a request, and of `StructuredOutputs`, for each kind of form."""


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

    @property
    def form(self) -> AnswerForm | None:
        """The form that the answer has to take; None where that is free."""
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
                raise BadRequestError("structured_outputs: it asks for no form", param="structured_outputs")
            forms += within
        if len(forms) > 1:
            fields = [form.field for form in forms]
            raise BadRequestError(f"{' and '.join(fields)} ask for one form each: send one of them", param=fields[-1])
        self._form = forms[0] if forms else None
        return self


def _forms(fields: Body, where: str) -> Iterator[AnswerForm]:
    """Yield the forms that are asked for in `_FIELDS`.

    Raises:
        BadRequestError: text that should be a JSON schema is none.
    """
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
