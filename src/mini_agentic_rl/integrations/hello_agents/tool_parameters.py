"""Parameters of each action of the tool: the source of validation, JSON schema and `get_parameters()`.

An invalid parameter is reported in one sentence with the parameter and the allowed values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar, get_args

from pydantic import Field, ValidationError

from ...config import Settings, called_here, extra_of, misspelt, restated
from ...datasets import Form, is_data_file, is_hub_name, split_style, task_names
from ...errors import UserError, nearest
from ...policy import EMBEDDED_NAMES, adapter_folder, base_model_of
from ...trainer import RunSettings
from . import TrainingConfig

Action = Literal["train", "load_dataset", "create_reward", "evaluate"]
ACTIONS: tuple[str, ...] = get_args(Action)

Supervised = Literal["sft", "dpo", "kto", "orpo", "reward"]
Reinforcing = Literal["grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo", "reinforce++", "ppo"]
Algorithm = Literal[Supervised, Reinforcing]
RewardType = Literal["accuracy", "format", "length_penalty", "step"]


class ToolError(UserError):
    """An invalid call; the message names the parameter to change."""


class DataParameters(Settings):
    """The rows to read."""

    dataset: str | None = None
    """Data set: `gsm8k`, `arithmetic` (generated), `gsm_symbolic`, the path of a file, a Hugging Face id, or the name
    of a registered one. Without it GSM8K where it can be had, else arithmetic; for preferences always arithmetic."""
    custom_dataset: Any = None
    """Rows to use instead of a data set; from an agent, the name of a registered one."""
    split: Literal["train", "val", "test"] = "train"
    """Part of the data set."""
    max_samples: int | None = Field(default=None, ge=1, le=100_000)
    """At most this many rows."""


class RewardParameters(Settings):
    """The reward to compute."""

    reward_type: RewardType = "accuracy"
    """Reward: `accuracy` (1 for the right answer), `format` (the form of the reply), `length_penalty` (accuracy, less
    for long replies), `step` (accuracy, more for written steps)."""
    custom_reward: Any = None
    """A reward function to use instead; from an agent, the name of a registered one."""
    tolerance: float = Field(default=1e-4, ge=0, allow_inf_nan=False)
    """Largest distance of a number from the right one."""
    max_length: int = Field(default=1024, ge=1, le=1_000_000)
    """`length_penalty`: characters from which on a reply costs."""
    penalty_weight: float = Field(default=0.001, ge=0, allow_inf_nan=False)
    """`length_penalty`: what each character more costs."""
    step_bonus: float = Field(default=0.1, ge=0, allow_inf_nan=False)
    """`step`: what each written step adds."""


class TrainParameters(DataParameters, RewardParameters):
    """`train`."""

    algorithm: Algorithm
    """Training: `sft`, `dpo`, `kto`, `orpo`, `reward` (a reward model), or reinforcement learning by `grpo`, `dr_grpo`,
    `dapo`, `gspo`, `cispo`, `rloo`, `reinforce++`, `ppo`."""
    model_name: str = restated(
        TrainingConfig,
        "model_name",
        "embedded",
        "Model: `embedded`, a Hugging Face id, a folder, or the output folder of an earlier training.",
    )
    output_dir: str = restated(
        TrainingConfig, "output_dir", "output", "Folder for the result, inside the folder of the tool."
    )
    num_epochs: int = restated(TrainingConfig, "num_train_epochs", 3, "Passes over the rows.", le=1000)
    max_steps: int | None = restated(
        TrainingConfig, "max_steps", None, "Optimizer steps, in place of the passes.", le=1_000_000
    )
    batch_size: int = restated(
        TrainingConfig, "per_device_train_batch_size", 4, "Rows of a pass; in reinforcement learning, tasks.", le=1024
    )
    gradient_accumulation_steps: int = restated(
        TrainingConfig, "gradient_accumulation_steps", 1, "Passes per optimizer step.", le=1024
    )
    learning_rate: float | None = restated(
        TrainingConfig, "learning_rate", None, "Peak learning rate; without it the usual one of the algorithm."
    )
    use_lora: bool = restated(TrainingConfig, "use_lora", True)
    lora_r: int = restated(TrainingConfig, "lora_r", 16, "Rank of the adapter.", le=1024)
    lora_alpha: int = restated(TrainingConfig, "lora_alpha", 32, "Scale of the adapter.", le=8192)
    samples_per_prompt: int = restated(
        TrainingConfig, "samples_per_prompt", 8, "Reinforcement learning: answers to each task.", ge=2, le=256
    )
    max_new_tokens: int = restated(
        TrainingConfig,
        "max_new_tokens",
        256,
        "Reinforcement learning: at most this many tokens of an answer.",
        le=32_768,
    )
    temperature: float = restated(TrainingConfig, "temperature", 1.0, "Reinforcement learning: sampling temperature.")
    eval_samples: int = Field(default=100, ge=0, le=10_000)
    """Reinforcement learning: held-out tasks that measure the reward before and after; 0 leaves that out."""
    seed: int = restated(TrainingConfig, "seed", 42, "Seed of the data, of sampling, and of new weights.")
    use_wandb: bool = restated(TrainingConfig, "use_wandb", False)
    wandb_project: str | None = restated(TrainingConfig, "wandb_project", None)
    use_tensorboard: bool = restated(TrainingConfig, "use_tensorboard", False, "Write metrics for TensorBoard.")
    resume: bool = restated(
        RunSettings, "resume", False, "Go on with the training in the output folder from its last checkpoint."
    )
    overwrite: bool = restated(RunSettings, "overwrite", False, "Replace the training in the output folder.")


class LoadDatasetParameters(DataParameters):
    """`load_dataset`."""

    format: Form = "sft"
    """Form of the rows: `sft` (conversations), `rl` (a prompt and its right answer), `preference`, `unpaired`."""
    model_name: str | None = restated(
        TrainingConfig,
        "model_name",
        None,
        "Ignored: prompts are messages, and each model has its chat template.",
    )


class EvaluateParameters(DataParameters, RewardParameters):
    """`evaluate`."""

    defaults: ClassVar[Mapping[str, Any]] = {"split": "test", "max_samples": 100}

    model_name: str = restated(
        TrainingConfig,
        "model_name",
        "embedded",
        "Model: `embedded`, a Hugging Face id, a folder, or the output folder of a training.",
    )
    model_path: str | None = None
    """Another name of `model_name`."""
    max_new_tokens: int = restated(
        TrainingConfig, "max_new_tokens", 256, "At most this many tokens of an answer.", le=32_768
    )
    use_lora: bool = restated(TrainingConfig, "use_lora", True, "Ignored: an adapter is recognised by its folder.")
    seed: int = restated(TrainingConfig, "seed", 42, "Seed of the draw of rows.")


PARAMETERS: Mapping[str, type[Settings]] = {
    "train": TrainParameters,
    "load_dataset": LoadDatasetParameters,
    "create_reward": RewardParameters,
    "evaluate": EvaluateParameters,
}

P = TypeVar("P", bound=Settings)


@dataclass(frozen=True)
class ToolParameter:
    """One parameter, as an agent framework shows it."""

    name: str
    type: str
    """string, integer, number, boolean or array."""
    description: str
    required: bool
    default: Any
    actions: tuple[str, ...]
    """The actions that take it."""


def read_action(parameters: Mapping[str, Any]) -> str:
    """Return the action of a call, by default `train`."""
    if not parameters:
        raise ToolError(
            f"the call is empty: give `action` ({', '.join(ACTIONS)}). To train, give at least `algorithm`, and "
            "`model_name`, `dataset` and `output_dir` with it"
        )
    action = parameters.get("action", "train")
    if action not in ACTIONS:
        raise ToolError(
            f"action {action!r} is unknown{_hint(nearest(str(action), ACTIONS))}. Allowed: {', '.join(ACTIONS)}"
        )
    return str(action)


def read_parameters(kind: type[P], action: str, parameters: Mapping[str, Any]) -> P:
    """Return the validated parameters of an action, without `action` itself. None means the default."""
    given = {name: value for name, value in parameters.items() if name != "action" and value is not None}
    for name in given:
        if name not in kind.model_fields:
            known = ", ".join(kind.model_fields)
            near = called_here(name, kind.model_fields)
            hint = f" (here it is {near!r})" if near else _hint(misspelt(name, kind.model_fields))
            raise ToolError(f"{action} has no parameter {name!r}{hint}. Allowed: {known}")
    try:
        return kind(**given)
    except ValidationError as error:
        problems = "; ".join(_complaint(kind, problem) for problem in error.errors())
        raise ToolError(problems) from error


def json_schema() -> dict[str, Any]:
    """Return one JSON schema for all actions; each description lists the actions that take the parameter."""
    properties: dict[str, Any] = {
        "action": {"type": "string", "enum": list(ACTIONS), "default": "train", "description": _ABOUT_ACTIONS}
    }
    for name, (schema, actions) in _schemas().items():
        properties[name] = {**schema, "description": f"{schema['description']} ({', '.join(actions)})"}
    return {"type": "object", "properties": properties, "required": ["action"], "additionalProperties": False}


def describe() -> list[ToolParameter]:
    """Return every parameter, `action` first."""
    return [
        ToolParameter("action", "string", _ABOUT_ACTIONS, False, "train", ACTIONS),
        *(
            ToolParameter(
                name,
                str(schema.get("type", "string")),
                schema["description"],
                False,
                schema.get("default"),
                tuple(actions),
            )
            for name, (schema, actions) in _schemas().items()
        ),
    ]


_ABOUT_ACTIONS = (
    "train: train and wait for the end. load_dataset: look at rows. create_reward: try a reward. "
    "evaluate: measure a model."
)


def _schemas() -> dict[str, tuple[dict[str, Any], list[str]]]:
    """Return the schema of each parameter, from the first action that has it, and the actions that have it.

    The alternative null, which means the default, is left out.
    """
    schemas: dict[str, tuple[dict[str, Any], list[str]]] = {}
    for action, kind in PARAMETERS.items():
        for name, schema in kind.model_json_schema()["properties"].items():
            hidden = ("title", "anyOf", *extra_of(kind.model_fields[name]))
            plain = {key: value for key, value in schema.items() if key not in hidden and value is not None}
            plain["description"] = " ".join(str(schema.get("description", "")).split())
            for alternative in schema.get("anyOf", ()):
                if alternative.get("type") != "null":
                    plain |= alternative
            if name.startswith("custom_"):
                plain["type"] = "string"
            schemas.setdefault(name, (plain, []))[1].append(action)
    return schemas


def _complaint(kind: type[Settings], problem: Any) -> str:
    name = str(problem["loc"][0]) if problem["loc"] else "parameters"
    if problem["type"] == "missing":
        about = " ".join((kind.model_fields[name].description or "").split())
        return (
            f"{name} is missing. {about} With it, `model_name` and `dataset` say what is trained on what; without them "
            "`embedded`, on GSM8K or generated arithmetic"
        )
    if problem["type"] == "literal_error":
        choices = [word.strip(" '") for word in str(problem["ctx"]["expected"]).replace(" or ", ",").split(",")]
        near = _hint(nearest(str(problem["input"]), choices))
        return f"{name}={problem['input']!r} is not allowed{near}. Allowed: {', '.join(choices)}"
    message = str(problem["msg"])
    about = " ".join((kind.model_fields[name].description or "").split()) if name in kind.model_fields else ""
    return f"{name}={problem['input']!r}: {message[:1].lower()}{message[1:]}. {about}".rstrip()


def _hint(near: str | None) -> str:
    return "" if near is None else f" (did you mean {near!r}?)"


_PARAMETERS: Mapping[str, str] = {
    "adapter": "model_name",
    "full_finetune": "use_lora=false",
    "model": "model_name",
    "no_use_lora": "use_lora=false",
    "total_epochs": "num_epochs",
    "total_steps": "max_steps",
}
"""Settings in error messages whose parameters have another name."""


def message_of(error: Exception) -> str:
    """Return an error's message in one line, with the tool's parameter names; unexpected errors with their type."""
    if isinstance(error, UserError):
        return " ".join(error.spelled(lambda name: _PARAMETERS.get(name, name)).split())
    if isinstance(error, ImportError):
        return " ".join(str(error).split())
    return f"{type(error).__name__}: {error}"


# The paths that an agent may read and write: output folders inside one root, data files there or in named folders.


class AllowedPaths:
    """The folders of a tool.

    Args:
        root: output folders are inside it; relative paths begin there.
        data_folders: further folders whose files may be read as data sets.
        model_folders: further folders whose models may be loaded.
    """

    def __init__(
        self,
        root: str | Path,
        data_folders: Sequence[str | Path] = (),
        model_folders: Sequence[str | Path] = (),
    ) -> None:
        self.root = Path(root).expanduser().resolve()
        self._loadable = (self.root, *(Path(folder).expanduser().resolve() for folder in model_folders))
        self._readable = (self.root, *(Path(folder).expanduser().resolve() for folder in data_folders))

    def output(self, output_dir: str) -> Path:
        """Return the output folder of this name."""
        folder = self._absolute(output_dir)
        if folder == self.root or not folder.is_relative_to(self.root):
            raise ToolError(f"output_dir={output_dir!r}: trainings write inside {self.root}; give a folder there")
        return folder

    def model(self, name: str) -> str:
        """Return the path of a model folder that may be loaded, or the name of a model on the Hub."""
        if name.lower() in EMBEDDED_NAMES:
            return name
        here = Path(name).expanduser().resolve()
        loadable = next((folder for folder in (self._absolute(name), here) if self._may_load(folder)), None)
        if loadable is not None and loadable.exists():
            for entry in loadable.rglob("*"):
                if not self._may_load(entry.resolve()):
                    raise ToolError(f"model_name={name!r}: {entry.name} in it is a link to elsewhere")
            adapter = adapter_folder(loadable)
            if adapter is not None:
                self.model(base_model_of(adapter))
            return str(loadable)
        is_local = name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name
        if here.exists() or self._absolute(name).exists() or (is_local and loadable is None):
            folders = ", ".join(map(str, self._loadable))
            raise ToolError(f"model_name={name!r}: models are loaded inside {folders}; put it there")
        return name

    def _may_load(self, path: Path) -> bool:
        return any(path.is_relative_to(folder) for folder in self._loadable)

    def dataset(self, name: str) -> str:
        """Return the name or the path of a data set that may be read. `module:function`, which runs code, is none."""
        rest, as_text = split_style(name)
        if as_text:
            return f"text:{self.dataset(rest)}"
        if name.partition(":")[0] in task_names():
            return name
        path = self._absolute(name)
        if path.exists() or is_data_file(path):
            if not any(path.is_relative_to(folder) for folder in self._readable):
                folders = ", ".join(map(str, self._readable))
                raise ToolError(f"dataset={name!r}: files are read inside {folders}; put it there")
            if not path.exists():
                raise ToolError(f"dataset={name!r}: there is no file {path}")
            return str(path)
        if is_hub_name(name):
            return name
        raise ToolError(
            f"dataset={name!r} is unknown. Allowed: {', '.join(task_names())}, the path of a file, owner/name on the "
            "Hugging Face Hub, or a registered name"
        )

    def _absolute(self, name: str) -> Path:
        return (self.root / Path(name).expanduser()).resolve()
