"""The prompt to improve, among the resources that a search begins with."""

from __future__ import annotations

from collections.abc import Mapping

from ...errors import UserError
from ...types import NamedResources, PromptTemplate


def find_prompt(held: NamedResources, wanted: str | None, algorithm: str) -> tuple[str, PromptTemplate]:
    """Return the prompt and its name.

    Args:
        held: the initial resources.
        wanted: its name; None where there is only one.
        algorithm: name of the algorithm, for the message of an error.

    Raises:
        UserError: there is none of that name, or it is not clear which is meant.
    """
    prompts = {name: value for name, value in held.items() if isinstance(value, PromptTemplate)}
    if wanted is not None:
        if wanted not in prompts:
            raise UserError(
                f"{wanted!r}: `initial_resources` hold {_listed(prompts)} under that name", setting="prompt_name"
            )
        return wanted, prompts[wanted]
    if len(prompts) != 1:
        raise UserError(
            f"`initial_resources` hold {_listed(prompts)}: "
            + (f"choose one with {algorithm}(prompt_name=…)" if prompts else "give Trainer(initial_resources={…}) one")
        )
    return next(iter(prompts.items()))


def _listed(prompts: Mapping[str, PromptTemplate]) -> str:
    return f"the prompt templates {', '.join(prompts)}" if prompts else "no prompt template"
