"""The settings of Mini-GRPO. Reading them needs no torch."""

from __future__ import annotations

from pydantic import model_validator
from typing_extensions import Self

from ..loop.settings import LoopSettings


class GRPOSettings(LoopSettings):
    """The loop: how much is sampled, how it is turned into a loss, how often it is measured."""

    @model_validator(mode="after")
    def _has_something_to_compare_with(self) -> Self:
        if self.samples_per_prompt == 1 and self.baseline != "none":
            raise ValueError(
                f"`samples_per_prompt=1` leaves nothing to compare with under `baseline={self.baseline}`: set 2 or "
                "more, or `baseline=none`, as reinforce++ has it"
            )
        return self
