"""Mini-GRPO: group relative policy optimization (Shao et al. 2024) of the agent that a person already has.

    measure -> warm up (if asked) -> measure -> [draw tasks -> G rollouts each -> advantages -> one step]* -> measure

The policy serves an OpenAI-compatible endpoint, the runners run the agent against it, the store holds what happened,
and the update reads it back as token trees.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any, ClassVar

from ...policy import EngineSettings, LearnerSettings, LoraSettings, PolicyError
from ...types import Dataset
from ..base import Algorithm, AlgorithmContext
from ..evaluation import Evaluation
from ..seeds import derive_seed
from ..serving import ServedPolicy
from ..warm_start import WarmStart
from .loop import Loop
from .progress import Progress
from .settings import GRPOSettings

logger = logging.getLogger(__name__)


class MiniGRPO(Algorithm):
    """Trains the model that it serves.

    The agent finds that model as the resource "llm", and as "main_llm"; other LLMs of the trainer's `initial_resources`
    stay as they are, and what they are asked is not trained. `Trainer(num_epochs=…, on_failure=…)` replace the settings
    `total_epochs` and `on_failure`.

    Args:
        model: "embedded", a folder, a hub id, or a loaded Hugging Face model.
        tokenizer: its tokenizer; None takes the one beside the model.
        settings: the loop; single settings may also be given by name (`total_steps=10`).
        lora: the adapter; None trains every weight.
        learner: the optimizer.
        engine: sampling.
        warm_start: conversations to imitate first; None leaves that out.
        load_options: `dtype`, `device`, `quantization`, `trust_remote_code` of `load_model`.
        keep_open: leave policy and endpoint running after the run, for `close()` to end.

    Raises:
        pydantic.ValidationError: a setting is out of its range or has no such name.
    """

    honours: ClassVar[frozenset[str]] = frozenset({"num_epochs", "on_failure"})

    def __init__(
        self,
        model: Any = "embedded",
        tokenizer: Any | None = None,
        *,
        settings: GRPOSettings | None = None,
        lora: LoraSettings | None = LoraSettings(),  # noqa: B008  # frozen
        learner: LearnerSettings | None = None,
        engine: EngineSettings | None = None,
        warm_start: WarmStart | None = None,
        load_options: Mapping[str, Any] | None = None,
        keep_open: bool = False,
        **overrides: Any,
    ) -> None:
        super().__init__()
        self.settings = GRPOSettings(**((settings or GRPOSettings()).model_dump() | overrides))
        if self.settings.kl_coef > 0 and lora is None:
            raise PolicyError("kl_coef needs LoRA: under full training no reference weights are left; set kl_coef 0")
        self.learner_settings = learner or LearnerSettings()
        self.warm_start = warm_start
        self.served: ServedPolicy | None = None
        self.evaluations: list[Evaluation] = []
        self.progress = Progress()
        self._model = model
        self._tokenizer = tokenizer
        self._lora = lora
        self._engine = (engine or EngineSettings()).model_copy(update={"deterministic": self.settings.deterministic})
        self._load_options = dict(load_options or {})
        self._keep_open = keep_open

    def bind(self, context: AlgorithmContext) -> None:
        asked = {"total_epochs": context.num_epochs, "on_failure": context.on_failure}
        self.settings = self.settings.model_copy(
            update={name: value for name, value in asked.items() if value is not None}
        )
        super().bind(context)

    @property
    def summary(self) -> Mapping[str, Any]:
        """`accuracy` (measurements in order), `seconds` by phase, `untrained` (reason to count), `steps`."""
        return {
            "accuracy": list(self.progress.accuracy),
            "seconds": dict(self.progress.seconds),
            "untrained": dict(self.progress.untrained),
            "steps": self.progress.step,
        }

    def close(self) -> None:
        """End policy and endpoint (only needed with `keep_open`)."""
        if self.served is not None:
            self.served.close()
            self.served = None

    async def run(self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None) -> None:
        """The whole loop; see the top of this module.

        Raises:
            ValueError: there is nothing to train on.
            PolicyError: the model cannot be had.
        """
        nothing = train_dataset is None or len(train_dataset) == 0
        if nothing and self.settings.steps(1) > 0:
            raise ValueError("train_dataset is empty: give MiniGRPO at least one task")
        started = time.perf_counter()
        self.context.logger.phase("loading the model")
        self.served = await asyncio.to_thread(
            ServedPolicy.load,
            self._model,
            self._tokenizer,
            engine=self._engine,
            lora=self._lora,
            seed=derive_seed(self.settings.seed, "adapter"),
            **self._load_options,
        )
        try:
            await asyncio.to_thread(self.served.serve, store=self.context.store)
            self.progress.spend("load", time.perf_counter() - started)
            await Loop(self, self.served, train_dataset, val_dataset).all()
        finally:
            if not self._keep_open:
                await asyncio.to_thread(self.close)
