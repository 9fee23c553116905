"""Bodies of requests read into models; what is wrong with one is a single error that names the field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from .errors import BadRequestError


class Body(BaseModel):
    """A part of a request. Fields that it does not name are ignored."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)


BodyT = TypeVar("BodyT", bound=Body)


def checked(model: type[BodyT], value: Mapping[str, Any]) -> BodyT:
    """`value` as a `model`.

    Raises:
        BadRequestError: a field has a bad value; `param` is the path to the first such field, as in
            `tools[0].function.name`.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        paths = [_path(each, value) for each in found]
        # A union tells what is wrong by each of its members. The one that was meant got furthest, or is of this type.
        alternatives = [index for index, path in enumerate(paths) if path[: len(paths[0])] == paths[0]]
        meant = max(alternatives, key=lambda index: (len(paths[index]), not found[index]["type"].endswith("_type")))
        param = "".join(paths[meant]).removeprefix(".")
        message = found[meant]["msg"].removeprefix("Value error, ")
        if not param:
            raise BadRequestError(f"the body is not a valid request: {message}") from None
        raise BadRequestError(f"{param}: {message}", param=param) from None


def _path(error: ErrorDetails, value: Any) -> list[str]:
    """Where in the body `value` an error is. Its location also names members of unions, which are not in the body."""
    path = []
    missing = error["loc"][-1] if error["type"] == "missing" else None
    for step in error["loc"]:
        if isinstance(step, int) and isinstance(value, list):
            path.append(f"[{step}]")
            value = value[step]
        elif isinstance(value, Mapping) and (step in value or step == missing):
            path.append(f".{step}")
            value = value.get(step)
    return path
