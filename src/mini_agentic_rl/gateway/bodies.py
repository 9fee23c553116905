"""Bodies of requests read into models; what is wrong with one is a single error that names the field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from .errors import BadRequestError


class Body(BaseModel):
    """A part of a request. Fields that it does not name are ignored."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)


BodyT = TypeVar("BodyT", bound=Body)


def checked(model: type[BodyT], value: Mapping[str, Any]) -> BodyT:
    """`value` as a `model`.

    Raises:
        BadRequestError: a field has a bad value; `param` names the first such field.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        location = first["loc"]
        message = first["msg"].removeprefix("Value error, ")
        if not location:
            raise BadRequestError(f"the body is not a valid request: {message}") from None
        param = str(location[0])
        if len(location) > 1 and isinstance(location[1], int):
            param = f"{param}[{location[1]}]"
        raise BadRequestError(f"{param}: {message}", param=param) from None
