"""Making the objects of a store from what is known to be valid, at a fraction of the cost of pydantic's own ways.

Stores make several such objects in every call: of rows that were valid when they were written, and of one object with
another status. Values that come from a caller are validated by the model as usual, never here.
"""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel

M = TypeVar("M", bound=BaseModel)


def made(model: type[M], values: dict[str, Any]) -> M:
    """An object of `model` with these values, one for each of its fields. Takes the dict over.

    As `model.model_construct(**values)`, for models without private attributes and extra fields.
    """
    item = model.__new__(model)
    object.__setattr__(item, "__dict__", values)
    object.__setattr__(item, "__pydantic_fields_set__", set(values))
    object.__setattr__(item, "__pydantic_extra__", None)
    object.__setattr__(item, "__pydantic_private__", None)
    return item


def changed(item: M, **update: Any) -> M:
    """The object with other values in some fields; as `item.model_copy(update=update)`, for the same models."""
    return made(type(item), {**vars(item), **update})
