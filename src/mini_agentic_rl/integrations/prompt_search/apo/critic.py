"""The critic of APO: criticises a prompt template, and rewrites it to answer a criticism."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ....types import PromptTemplate
from ..writer import Writer, conversation
from .prompts import ANGLES, CRITIQUE, EDIT
from .settings import APOSettings

if TYPE_CHECKING:
    from openai import AsyncOpenAI


class Critic(Writer):
    """Criticises and rewrites; see `Writer`."""

    def __init__(self, client: AsyncOpenAI, settings: APOSettings, seed_prompt: PromptTemplate) -> None:
        super().__init__(client, settings, seed_prompt)
        self._apo = settings

    async def criticise(self, template: str, transcripts: Sequence[str], angle: int) -> str:
        """Return the textual gradient: what holds the template back, judged by what an agent did with it.

        Args:
            angle: which of the points of view to take; counted round.

        Raises:
            CriticError: there is no usable answer.
            UserError: the endpoint refuses every call.
        """
        question = CRITIQUE.format(
            template=template, transcripts="\n\n".join(transcripts), angle=ANGLES[angle % len(ANGLES)]
        )
        return await self.answer(self._apo.gradient_model, "gradient_model", conversation(question))

    async def rewrite(self, template: str, critique: str) -> str:
        """Return the template, rewritten to answer a criticism; it takes the same placeholders.

        Raises:
            CriticError: there is no usable answer.
            UserError: the endpoint refuses every call.
        """
        apply = self._apo.apply_edit_model
        return await self.written(
            apply,
            "apply_edit_model",
            lambda rules: EDIT.format(template=template, critique=critique, rules=rules),
        )
