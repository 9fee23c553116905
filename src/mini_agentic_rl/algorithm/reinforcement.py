"""Reinforcement learning of the agent that a person already has: the base of Mini-GRPO and Mini-PPO.

The policy serves an OpenAI-compatible endpoint, the runners run the agent against it, the store holds the rollouts, and
the update reads them back as token trees. `ReinforcementLearning.run` loads, serves, and runs a `Loop`.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, TypeVar

from ..config import VALUES, called_here
from ..errors import UserError
from ..gateway import GatewayLimits, RolloutLimits, ServedPolicy
from ..policy import (
    DEFAULT_ADAPTER,
    EngineSettings,
    Launch,
    LearnerSettings,
    LoraSettings,
    ModelSettings,
    Policy,
    PolicyError,
    RankedPolicy,
    RankSettings,
    follow_rank_0,
    launched,
)
from ..samplers import SamplerSettings
from ..types import Dataset
from .base import Algorithm, AlgorithmContext
from .checkpoint import read_progress
from .loop import Loop
from .measure import serving
from .rollouts import Evaluation
from .settings import LoopSettings, WarmStart
from .state import Objective, RunProgress
from .tasks import derive_seed

SettingsT = TypeVar("SettingsT", bound=LoopSettings)
_PLACES: Final[Mapping[str, Collection[str]]] = {
    "the reward is what the agent, or a hook's on_rollout_end, returns": (
        *("reward_fn", "reward_func", "reward_funcs", "reward_function", "reward_model"),
    ),
    "lora=None trains every weight, lora=LoraSettings(…) an adapter": ("use_lora", "use_peft", "full_finetune"),
    "give learner=LearnerSettings({field}=…)": LearnerSettings.model_fields,
    "give engine=EngineSettings({field}=…)": EngineSettings.model_fields,
    "give lora=LoraSettings({field}=…)": ("lora_r", "lora_alpha", "lora_dropout", "target_modules"),
    "give limits=GatewayLimits({field}=…)": RolloutLimits.model_fields,
    "give {field}={value!r}": ("model", "backend"),
    'give load_options={{"{field}": {value!r}}}': ModelSettings.model_fields,
    "give it to Trainer({field}=…)": ("output_dir", "resume", "overwrite", "n_runners", "hooks", "loggers"),
}
"""Messages about arguments that belong elsewhere, with the names that each is for."""
_RENAMED: Final = {"lora_r": "r", "lora_alpha": "alpha", "lora_dropout": "dropout", "loggers": "logger"}


class ReinforcementLearning(Algorithm, Generic[SettingsT]):
    """Trains the model that it serves. The `objective` of a subclass turns rollouts into new weights.

    The agent finds that model as the resource "llm", and as "main_llm"; other LLMs of the trainer's `initial_resources`
    and those of its `llm_proxy` stay as they are, and calls to them are not trained. Nor are calls to the model without
    its adapter, which agents can call as `{model}-base`. An `llm_proxy` without models stands in front of the model
    that is trained, and records its calls. `Trainer(num_epochs=…, on_failure=…)` replace the settings `total_epochs`
    and `on_failure`.

    Several agents of a rollout can be trained at once, each with an adapter of its own on the one model:
    `adapters=("assistant", "user")`. An agent chooses by the name of the model in its call, `model="user"`, or takes
    the resource of that name; "llm" and "main_llm" are the first. Each adapter has its own optimizer, learns from the
    calls that were made to it, and is compared within groups of its own. The rewards of a rollout are for all of them;
    of one with several dimensions each takes the dimension of its name, if there is one.

    Args:
        model: "embedded", a folder, a hub id, or a loaded Hugging Face model.
        tokenizer: its tokenizer; None takes the one beside the model.
        settings: the loop; single settings may also be given by name (`total_steps=10`), a published variant as
            `preset="dapo"`.
        lora: the adapter; None trains every weight.
        adapters: names of the adapters to train; or a mapping from each to the folder of a saved one to go on with, or
            to None for a new one. None is one adapter, called by the model's own name.
        fixed_adapters: folders of saved adapters that agents may call by these names, and that are not trained.
        learner: the optimizer; with several adapters, that of each.
        engine: sampling.
        ranks: several processes that hold the policy, started by torchrun.
        sampler: servers that sample in place of the engine; None is the engine.
        warm_start: conversations to imitate first; a mapping has those of each adapter, else they are those of the
            first. None leaves that out.
        validation: tasks that choose the weights that are kept (`measure.py`), neither trained on nor those that the
            accuracy is measured on; at most `validation_size` of them where that is not 0. Needs a trainer with an
            `output_dir`, where the checkpoints are. None keeps the last weights.
        transfer: tasks unlike those that are trained on, measured before and after beside the others.
        load_options: `dtype`, `device`, `quantization`, `trust_remote_code` of `load_model`.
        limits: of the endpoint, e.g. how many LLM calls and tokens each rollout may have.
        keep_open: leave policy and endpoint running after the run, until `close()`.

    Raises:
        pydantic.ValidationError: a setting is out of its range or has no such name.
        PolicyError: settings and adapters do not go together.
        UserError: an argument belongs elsewhere; the message says where.
    """

    honours: ClassVar[frozenset[str]] = frozenset({"num_epochs", "on_failure"})

    settings_class: type[SettingsT]
    """Class of `settings`; that of `LoopSettings`, or a subclass with settings of the algorithm's own."""

    def __init__(
        self,
        model: Any = "embedded",
        tokenizer: Any | None = None,
        *,
        settings: SettingsT | None = None,
        lora: LoraSettings | None = LoraSettings(),  # noqa: B008  # frozen
        adapters: Sequence[str] | Mapping[str, str | Path | None] | None = None,
        fixed_adapters: Mapping[str, str | Path] | None = None,
        learner: LearnerSettings | None = None,
        engine: EngineSettings | None = None,
        ranks: RankSettings | None = None,
        sampler: SamplerSettings | None = None,
        warm_start: WarmStart | Mapping[str, WarmStart] | None = None,
        validation: Dataset[Any] | None = None,
        transfer: Dataset[Any] | None = None,
        load_options: Mapping[str, Any] | None = None,
        limits: GatewayLimits | None = None,
        keep_open: bool = False,
        **overrides: Any,
    ) -> None:
        super().__init__()
        refuse_misplaced(overrides, self.settings_class.model_fields)
        if isinstance(settings, self.settings_class) and not overrides:
            self.settings: SettingsT = settings
        else:
            given = {} if settings is None else settings.model_dump(exclude_unset=True)
            self.settings = self.settings_class(**(given | overrides))
        if self.settings.kl_coef > 0 and lora is None:
            raise PolicyError(
                "needs LoRA: under full training no reference weights are left; set `kl_coef=0`", setting="kl_coef"
            )
        self.learner_settings = learner or LearnerSettings()
        if adapters is not None and not isinstance(adapters, Mapping):
            adapters = dict.fromkeys([adapters] if isinstance(adapters, str) else adapters)
        self._adapters: Mapping[str, str | Path | None] | None = adapters
        self._fixed_adapters = fixed_adapters
        self.warm_starts = warm_starts_of(warm_start, self._adapters or {DEFAULT_ADAPTER: None})
        self.validation = validation
        self.transfer = transfer
        self.served: ServedPolicy | None = None
        self.evaluations: list[Evaluation] = []
        self.progress = RunProgress()
        self.parameters: dict[str, int] = {}
        self.train_dataset: Dataset[Any] | None = None
        self.kernels: str | None = None
        self._model = model
        self._tokenizer = tokenizer
        self._lora = lora
        self._engine = (engine or EngineSettings()).model_copy(update={"deterministic": self.settings.deterministic})
        self._ranks = ranks or RankSettings()
        self._sampler = sampler or SamplerSettings()
        self._load_options = dict(load_options or {})
        if self._ranks.shard:
            check_shard(self._sampler, lora, self._load_options)
        self._limits = limits
        self._keep_open = keep_open
        self._configuration = self._configured()

    @property
    def configuration(self) -> Mapping[str, Any]:
        """Settings of the loop and its parts, in the groups of the command's configuration, as they were given:
        without those that a trainer or a run has filled in since."""
        return self._configuration

    def rows_to_keep(self, checkpoint: Path | None) -> int | None:
        return 0 if checkpoint is None else read_progress(checkpoint).logged

    def bind(self, context: AlgorithmContext) -> None:
        given = {"total_epochs": context.num_epochs, "on_failure": context.on_failure}
        self.settings = self.settings.model_copy(update={name: v for name, v in given.items() if v is not None})
        super().bind(context)

    def _configured(self) -> dict[str, Any]:
        model = self._model
        load = {"model": model if isinstance(model, str) else model.name_or_path or type(model).__name__}
        return {
            "load": load | self._load_options,
            "loop": self.settings.model_dump(mode="json"),
            "lora": None if self._lora is None else self._lora.model_dump(mode="json"),
            "adapters": None if self._adapters is None else dict(self._adapters),
            "fixed_adapters": dict(self._fixed_adapters or {}),
            "learner": self.learner_settings.model_dump(mode="json"),
            "engine": self._engine.model_dump(mode="json"),
            "ranks": self._ranks.model_dump(mode="json"),
            "sampling": self._sampler.model_dump(mode="json"),
            "limits": None if self._limits is None else self._limits.model_dump(mode="json"),
            "warm_start": {name: start.settings.model_dump(mode="json") for name, start in self.warm_starts.items()},
        }

    @abstractmethod
    def objective(self, policy: Policy, learner: LearnerSettings) -> Objective:
        """Return the update of a run. Called once a run, on the torch thread.

        Args:
            learner: settings of each optimizer, the steps of the whole run among them.
        """

    @property
    def summary(self) -> Mapping[str, Any]:
        """`accuracy` (measurements in order), `seconds` by phase, `untrained` (reason to count), `steps`,
        `parameters` (trained, and all), `kernels` (see `PolicyModel.kernels`); with validations also `validation` and
        `best_step`."""
        best = self.progress.best_validation
        validated = {} if best is None else {"validation": list(self.progress.validation), "best_step": best["step"]}
        return {
            **validated,
            "accuracy": list(self.progress.accuracy),
            "seconds": dict(self.progress.seconds),
            "untrained": dict(self.progress.untrained),
            "steps": self.progress.step,
            "parameters": dict(self.parameters),
            "kernels": self.kernels,
        }

    def close(self) -> None:
        """End policy and endpoint (only needed with `keep_open`)."""
        if self.served is not None:
            self.served.close()
            self.served = None

    async def run(self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None) -> None:
        """Load the model, serve it, and run the whole loop.

        Raises:
            ValueError: there is nothing to train on.
            PolicyError: the model cannot be loaded.
            RunFailedError: none of the rollouts could be trained; the message has the most frequent reason.
        """
        nothing = train_dataset is None or len(train_dataset) == 0
        if nothing and self.settings.steps(1) > 0:
            raise ValueError(f"train_dataset is empty: give {type(self).__name__} at least one task")
        self.progress, self.evaluations = RunProgress(), []
        self.train_dataset = train_dataset
        started = time.perf_counter()
        launch = launched()
        if launch is None and self._ranks.shard:
            raise PolicyError(
                "one rank has nobody to share the base with: start several, as with torchrun --nproc-per-node 2",
                setting="shard",
            )
        lead = None if launch is None else partial(RankedPolicy.lead, launch, self._ranks, self.configuration)
        load = partial(
            ServedPolicy.load,
            self._model,
            self._tokenizer,
            make=lead or Policy.load,
            sampler=self._sampler,
            least_context=self.settings.max_new_tokens,
            note=self.context.logger.note,
            **self._weights(),
        )
        endpoint = serving(self.context, self.settings, load, limits=self._limits, keep_open=self._keep_open)
        try:
            async with endpoint as (self.served, resources):
                self.kernels = self.served.policy.model.kernels
                self.progress.spend("load", time.perf_counter() - started)
                await self.served.policy.watch(Loop(self, self.served, resources, train_dataset, val_dataset).run())
        finally:
            if not self._keep_open:
                self.served = None

    def follow(self, launch: Launch) -> None:
        follow_rank_0(launch, self._ranks, self.configuration, self._model, **self._weights())

    def _weights(self) -> dict[str, Any]:
        """Return the options with which every rank loads the model."""
        return {
            "engine": self._engine,
            "lora": self._lora,
            "adapters": self._adapters,
            "fixed_adapters": self._fixed_adapters,
            "seed": derive_seed(self.settings.seed, "adapter"),
            **self._load_options,
        }


def refuse_misplaced(names: Iterable[str], known: Collection[str]) -> None:
    """Check arguments given by name; the settings refuse a name that is unknown everywhere.

    Args:
        known: names of settings of the loop.

    Raises:
        UserError: an argument belongs elsewhere; the message says where.
    """
    for name in names:
        if name in known or called_here(name, known) is not None:
            continue
        for place, fields in _PLACES.items():
            field = name if name in fields else called_here(name, fields)
            if field is not None:
                where = place.format(field=_RENAMED.get(field, field), value=VALUES.get(name, "…"))
                raise UserError(f"{name} is no setting of the loop: {where}")


def warm_starts_of(
    warm_start: WarmStart | Mapping[str, WarmStart] | None, adapters: Mapping[str, Any]
) -> dict[str, WarmStart]:
    """Return the warm start of each adapter; one that is given alone is for the first.

    Raises:
        PolicyError: there is no such adapter.
    """
    if isinstance(warm_start, WarmStart):
        return {next(iter(adapters)): warm_start}
    unknown = sorted(set(warm_start or {}) - set(adapters))
    if unknown:
        raise PolicyError(f"{unknown[0]!r} is not among the adapters {', '.join(adapters)}", setting="warm_start")
    return dict(warm_start or {})


def check_shard(sampler: SamplerSettings, lora: LoraSettings | None, load_options: Mapping[str, Any]) -> None:
    """Check that a base in parts (`shard`) is frozen, and that other servers sample.

    Raises:
        PolicyError: it would be sampled with, or trained itself.
    """
    if sampler.sampler == "own":
        raise PolicyError(
            "ranks that hold a part of the base each cannot sample: have servers do it, as with `sampler=vllm`",
            setting="shard",
        )
    if lora is None:
        raise PolicyError("only a frozen base is held in parts: train an adapter (LoRA)", setting="shard")
    if load_options.get("quantization", "none") != "none":
        raise PolicyError("a quantised base is not held in parts: use `quantization=none`", setting="shard")
