"""The model of a run: loaded with the weights to train, and saved so that `model` finds it again.

A new run trains a LoRA adapter on all linear layers. If the model is the folder of an adapter, that adapter is trained
further, so that stages follow each other (SFT, then DPO, then RL) and each leaves one adapter on the same base.

A reward model's head computes in float32, whatever the dtype of the layers: rewards of two good answers may differ by
less than bfloat16 resolves. It is padded with a token that ends no answer, because the reward is read at the last token
that is not padding.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model, load_peft_weights, set_peft_model_state_dict
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils.logging import disable_progress_bar

from ..errors import UserError, first_line
from ..files import reading
from ..gateway import ChatRenderer, load_tokenizer
from ..logging import only_errors_of
from ..policy import (
    Dtype,
    ModelNotFoundError,
    adapter_folder,
    cannot_load,
    quantization_config,
    refuse_non_finite,
    resolve_device,
    resolve_dtype,
    resolve_model,
    saved_adapter_config,
)
from .settings import PostTrainingSettings, RewardModelSettings

logger = logging.getLogger(__name__)

RUN_FILE = "run.json"
"""The configuration of a run, in its folder; `merge` and `export` copy it."""


def refuse_weights(settings: PostTrainingSettings, device: torch.device) -> None:
    """Refuse weights that cannot be trained as the settings say.

    Raises:
        UserError: the settings train whole weights of an adapter, quantised weights without a CUDA device, or a reward
            model as a language model.
        MissingPackageError: the package for quantised weights is not installed.
    """
    folder = adapter_folder(settings.model)
    if folder is not None and not settings.use_lora:
        raise UserError(
            f"{settings.model} is an adapter, but without `use_lora` whole weights are trained: "
            "merge it into its base first",
            setting="model",
        )
    if folder is not None and not isinstance(settings, RewardModelSettings) and task_of(folder) != "CAUSAL_LM":
        raise UserError(
            f"{settings.model} is a reward model, which writes no answers: give another model", setting="model"
        )
    if settings.quantization != "none":
        quantization_config(settings.quantization, torch.float32)  # raises without its package
        if device.type != "cuda":
            raise UserError(
                f"{settings.quantization} needs a CUDA device: use `quantization=none` here", setting="quantization"
            )


def _with_adapter(model: Any, folder: Path, **options: Any) -> Any:
    """Return a model with the adapter of a folder on it."""
    refuse_non_finite(weights := adapter_weights(folder), folder, setting="model")
    with reading(folder, setting="model"):
        return PeftModel.from_pretrained(model, folder, config=saved_adapter_config(folder, weights), **options)


def adapter_weights(folder: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of an adapter, on the CPU.

    Raises:
        UserError: it is damaged.
    """
    with reading(folder, setting="model"):
        return dict(load_peft_weights(str(folder), device="cpu"))


def load_bare(settings: PostTrainingSettings, architecture: Any, **options: Any) -> Any:
    """Load the base weights under an `AutoModel…` class.

    Raises:
        UserError: they cannot be loaded, or not in this way.
    """
    device = resolve_device(settings.device)
    if device.index:
        raise UserError(
            f"{settings.device}: choose the card with CUDA_VISIBLE_DEVICES, and `device=cuda`", setting="device"
        )
    dtype = resolve_dtype(settings.dtype, device)
    refuse_weights(settings, device)
    path = resolve_model(settings.model)
    if Path(path).is_dir():
        path = str(Path(path).resolve())  # the adapter remembers it, and may be loaded in another working directory
    if settings.quantization != "none":
        config = quantization_config(settings.quantization, dtype)
        options |= {"quantization_config": config, "device_map": {"": 0}}
    disable_progress_bar()
    weight_dtype = dtype if settings.use_lora else torch.float32
    try:
        with only_errors_of("transformers"):  # it warns of a new or unused head
            model = architecture.from_pretrained(path, dtype=weight_dtype, **options)
    except Exception as error:  # damaged model files may raise anything
        raise cannot_load(settings.model, error) from error
    refuse_non_finite(dict(model.named_parameters()), settings.model, setting="model")
    return model


def task_of(folder: Path) -> str | None:
    """Return the task of the adapter in `folder`: "CAUSAL_LM", "SEQ_CLS", or None where its configuration has none."""
    with reading(folder, setting="model"):
        task = LoraConfig.from_pretrained(str(folder)).task_type
    return None if task is None else str(getattr(task, "value", task))


def run_file_of(model: Path) -> Path | None:
    """Return the configuration of the run that trained the model in a folder; None if there is none."""
    run = model.parent if model.name.startswith("epoch_") else model
    return run / RUN_FILE if (run / RUN_FILE).is_file() else None


_HEAD = "score"
_SCORES = "SEQ_CLS"


def load_reward_model(
    path: str | Path, device: str = "auto", dtype: Dtype = "auto"
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a reward model that `reward` trained, or another model with one label, and its tokenizer.

    `model(input_ids, attention_mask).logits` are the rewards [B, 1] of B texts, padded with `tokenizer.pad_token_id`.
    A model of `reward` reads the ids of `rows.prompt_and_answer`: a prompt, an answer, and the token that ends it.

    Raises:
        UserError: the folder holds no reward model, or its base cannot be found.
    """
    disable_progress_bar()
    folder, torch_device = adapter_folder(path), resolve_device(device)
    base, torch_dtype = resolve_model(str(path)), resolve_dtype(dtype, torch_device)
    if folder is None:
        try:
            architectures = AutoConfig.from_pretrained(base).architectures or []
        except (OSError, ValueError) as error:
            raise ModelNotFoundError(f"cannot load the reward model {base!r}: {first_line(error)}") from error
        is_reward_model = any(name.endswith("ForSequenceClassification") for name in architectures)
    else:
        is_reward_model = task_of(folder) == _SCORES
    if not is_reward_model:
        raise UserError(f"{str(path)!r} is no reward model: train one with `mini-agentic-rl reward`", setting="model")
    with only_errors_of("transformers"), reading(path, setting="model"):
        model: Any = AutoModelForSequenceClassification.from_pretrained(base, num_labels=1, dtype=torch_dtype)
    _compute_head_in_float32(model)
    if folder is not None:
        model = _with_adapter(model, folder)
    source = base if folder is None else str(folder)
    with reading(source, setting="model"):
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(source)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = padding_token(tokenizer)
    model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
    return model.to(torch_device).eval(), tokenizer


def load_for_training(settings: PostTrainingSettings) -> tuple[Any, PreTrainedTokenizerBase, LoraConfig | None]:
    """Load a model to train: a reward model with a new score head for `RewardModelSettings`, else a language model.

    If the model is an adapter, it is trained on; a reward model's adapter may start from that of a language model.

    Returns:
        The bare model, or a `PeftModel` whose adapter is trained on; its tokenizer; and the adapter that the trainer
        creates, on every linear layer but the head: None where the model has one, or every weight is trained.

    Raises:
        UserError: the model cannot be loaded, or not in this way.
    """
    tokenizer, folder = load_tokenizer(settings.model), adapter_folder(settings.model)
    task: dict[str, Any] = {"task_type": "CAUSAL_LM"}
    scores = isinstance(settings, RewardModelSettings)
    if scores:
        task = {"task_type": _SCORES, "modules_to_save": [_HEAD]}
        tokenizer.pad_token = padding_token(tokenizer)
        torch.manual_seed(settings.seed)  # of the head
        bare = load_bare(settings, AutoModelForSequenceClassification, num_labels=1)
        bare.config.get_text_config().pad_token_id = tokenizer.pad_token_id
    else:
        bare = load_bare(settings, AutoModelForCausalLM)
    if not settings.use_lora:
        return bare, tokenizer, None
    if scores:
        _compute_head_in_float32(bare)
    if folder is None:
        task |= {"r": settings.lora_r, "lora_alpha": settings.lora_alpha, "lora_dropout": settings.lora_dropout}
        return bare, tokenizer, LoraConfig(target_modules="all-linear", **task)
    if task_of(folder) == task["task_type"]:
        return _with_adapter(bare, folder, is_trainable=True), tokenizer, None
    refuse_non_finite(weights := adapter_weights(folder), folder, setting="model")
    with reading(folder, setting="model"):
        config = saved_adapter_config(folder, weights)
    config.task_type, config.modules_to_save, config.inference_mode = _SCORES, [_HEAD], False
    new_head = {f"base_model.model.{_HEAD}.weight": getattr(bare, _HEAD).weight.detach().clone()}
    model = get_peft_model(bare, config)
    set_peft_model_state_dict(model, weights | new_head)
    return model, tokenizer, None


def padding_token(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a token to pad with that ends no answer.

    Raises:
        UserError: the tokenizer has no such token.
    """
    ends = {str(tokenizer.convert_ids_to_tokens(id_)) for id_ in ChatRenderer(tokenizer).eos_ids}
    candidates = [tokenizer.pad_token, tokenizer.unk_token, *tokenizer.all_special_tokens, *tokenizer.get_added_vocab()]
    padding = next((token for token in candidates if token and token not in ends), None)
    if padding is None:
        raise UserError("the tokenizer has no token to pad with but the one that ends answers: add a pad token to it")
    return str(padding)


def _compute_head_in_float32(model: Any) -> None:
    head = getattr(model, _HEAD)
    head.float()
    head.register_forward_pre_hook(lambda _, inputs: tuple(hidden.float() for hidden in inputs))
