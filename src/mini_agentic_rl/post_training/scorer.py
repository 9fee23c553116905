"""A reward model in memory: to be trained, or to score with.

The score head computes in float32, whatever the layers below compute in: of two good answers the rewards may differ by
less than bfloat16 can tell. Padding is a token that no answer ends with, for the reward is read at the last token that
is no padding.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model, load_peft_weights, set_peft_model_state_dict
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils.logging import disable_progress_bar

from ..errors import UserError
from ..gateway.render.renderer import ChatRenderer
from ..gateway.served_policy import load_tokenizer
from ..policy import Dtype, ModelNotFoundError, adapter_folder, resolve_device, resolve_dtype, resolve_model
from .models import TrainedModel, load_bare, lora_config, only_errors, task_of
from .settings import RewardModelSettings

_HEAD = "score"
_SCORES = "SEQ_CLS"


def load_reward_model(
    path: str | Path, device: str = "auto", dtype: Dtype = "auto"
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The reward model that `reward` left in a folder, or another with one label, and its tokenizer.

    `model(input_ids, attention_mask).logits` are the rewards [B, 1] of B texts, padded with `tokenizer.pad_token_id`;
    those of a run of `reward` are what `rows.prompt_and_answer` gives: a prompt, an answer, and the token that ends it.

    Raises:
        UserError: the folder holds no reward model, or its base is not here.
    """
    disable_progress_bar()
    folder, where = adapter_folder(path), resolve_device(device)
    base, kept = resolve_model(str(path)), resolve_dtype(dtype, where)
    source = base if folder is None else str(folder)
    if (folder is None and not _is_scorer(base)) or (folder is not None and task_of(folder) != _SCORES):
        raise UserError(f"--model {str(path)!r} is no reward model: train one with mini-agentic-rl reward")
    with only_errors():
        model: Any = AutoModelForSequenceClassification.from_pretrained(base, num_labels=1, dtype=kept)
    _compute_head_in_float32(model)
    if folder is not None:
        model = PeftModel.from_pretrained(model, folder)
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(source)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = padding_token(tokenizer)
    model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
    return model.to(where).eval(), tokenizer


def load_for_training(settings: RewardModelSettings) -> TrainedModel:
    """A model with a new score head; an adapter that the model is given by is where the new one starts.

    Raises:
        UserError: the model cannot be loaded, or not in this way.
    """
    tokenizer = load_tokenizer(settings.model)
    tokenizer.pad_token = padding_token(tokenizer)
    torch.manual_seed(settings.seed)  # of the head
    bare, device, dtype = load_bare(settings, AutoModelForSequenceClassification, num_labels=1)
    bare.config.get_text_config().pad_token_id = tokenizer.pad_token_id
    if not settings.use_lora:
        return TrainedModel(bare, tokenizer, None, device, dtype)
    _compute_head_in_float32(bare)
    folder = adapter_folder(settings.model)
    if folder is None:
        lora = lora_config(settings, task_type=_SCORES, modules_to_save=[_HEAD])
        return TrainedModel(bare, tokenizer, lora, device, dtype)
    if task_of(folder) == _SCORES:
        return TrainedModel(PeftModel.from_pretrained(bare, folder, is_trainable=True), tokenizer, None, device, dtype)
    config = LoraConfig.from_pretrained(str(folder))
    config.task_type, config.modules_to_save, config.inference_mode = _SCORES, [_HEAD], False
    new_head = {f"base_model.model.{_HEAD}.weight": getattr(bare, _HEAD).weight.detach().clone()}
    model = get_peft_model(bare, config)
    set_peft_model_state_dict(model, load_peft_weights(str(folder), device="cpu") | new_head)
    return TrainedModel(model, tokenizer, None, device, dtype)


def padding_token(tokenizer: PreTrainedTokenizerBase) -> str:
    """A token to pad with that ends no answer.

    Raises:
        UserError: the tokenizer has no such token.
    """
    ends = {str(tokenizer.convert_ids_to_tokens(id_)) for id_ in ChatRenderer(tokenizer).eos_ids}
    candidates = [tokenizer.pad_token, tokenizer.unk_token, *tokenizer.all_special_tokens, *tokenizer.get_added_vocab()]
    found = next((token for token in candidates if token and token not in ends), None)
    if found is None:
        raise UserError("the tokenizer has no token to pad with but the one that ends answers: add a pad token to it")
    return str(found)


def _is_scorer(path: str) -> bool:
    try:
        architectures = AutoConfig.from_pretrained(path).architectures or []
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise ModelNotFoundError(f"cannot load the reward model {path!r}: {first}") from error
    return any(name.endswith("ForSequenceClassification") for name in architectures)


def _compute_head_in_float32(model: Any) -> None:
    head = getattr(model, _HEAD)
    head.float()
    head.register_forward_pre_hook(_to_float32)


def _to_float32(head: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(hidden.float() for hidden in inputs)
