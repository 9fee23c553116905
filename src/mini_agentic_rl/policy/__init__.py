"""The policy: one set of weights that samples and learns. It knows only token ids; torch lives here.

Follow a token that is sampled:

    policy.py              `Policy`: sampling and learning take turns on the one torch thread (torch_thread.py)
    engine.py              requests come in, from any thread; one `step` is one forward pass
    scheduler.py           which tokens the pass computes: admission, chunked prefill, preemption
    kv_cache.py            the blocks that hold keys and values, and the prefix tree that finds them again
    step_batch.py          the pass as tensors
    model.py               `PolicyModel`: weights, adapters and their versions; hidden states and logits
    sampling_attention.py  who looks at which cached keys
    packed_linear.py       the layers' weights as a CPU samples with them
    sampler.py             logits to tokens and their log-probabilities

Follow a token that is trained:

    learner.py             `Learner`: packed trees and a loss in, gradients and an optimizer step out
    value_learner.py       the same with a critic
    tree_pass.py           the tree in chunks: forward in depth-first order, backward when all that look at one are done
    learning_attention.py  who looks at whom inside a tree
    lora_linear.py         a layer and its adapter as one operation
    logprobs.py            hidden states to log-probabilities and entropies, a few positions at a time
    frozen_head.py         the same through a head that is not trained, with the gradient worked out at once

Both stand on attention.py, the seam to transformers. load.py and model_files.py turn a name into a `PolicyModel`,
errors.py names what can go wrong on the way, and memory_plan.py predicts what a run will hold in memory.

settings.py holds the settings of all of them. `import mini_agentic_rl.policy` is light: what needs torch is loaded when
it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import (
    AdapterMismatchError,
    CacheFullError,
    ModelNotFoundError,
    PolicyError,
    PromptTooLongError,
    QueueFullError,
)
from .model_files import (
    ADAPTER_CONFIG,
    adapter_folder,
    base_model_of,
    embedded_is_pulled,
    embedded_path,
    pull_embedded,
    resolve_model,
)
from .settings import (
    AdaptedModelSettings,
    Dtype,
    EngineSettings,
    LearnerSettings,
    LoraSettings,
    ModelSettings,
    Quantization,
    Schedule,
    ValueSettings,
)
from .torch_thread import TorchThread

if TYPE_CHECKING:
    from .attention import ATTENTION_NAME
    from .engine import Engine
    from .learner import Learner, Loss, LossInputs, LossOutputs, TermStreams
    from .learning_attention import KeptKeys, TreeTables
    from .load import (
        load_model,
        load_weights,
        quantization_config,
        resolve_device,
        resolve_dtype,
        save_weights,
    )
    from .memory_plan import MemoryPlan, ModelShape, PlannedSettings, PlannedWork, fitting_plan, plan_memory
    from .model import DEFAULT_ADAPTER, PolicyModel
    from .policy import Policy
    from .value_learner import ValueLearner

__all__ = [
    "ADAPTER_CONFIG",
    "ATTENTION_NAME",
    "DEFAULT_ADAPTER",
    "AdaptedModelSettings",
    "AdapterMismatchError",
    "CacheFullError",
    "Dtype",
    "Engine",
    "EngineSettings",
    "KeptKeys",
    "Learner",
    "LearnerSettings",
    "LoraSettings",
    "Loss",
    "LossInputs",
    "LossOutputs",
    "MemoryPlan",
    "ModelNotFoundError",
    "ModelSettings",
    "ModelShape",
    "PlannedSettings",
    "PlannedWork",
    "Policy",
    "PolicyError",
    "PolicyModel",
    "PromptTooLongError",
    "Quantization",
    "QueueFullError",
    "Schedule",
    "TermStreams",
    "TorchThread",
    "TreeTables",
    "ValueLearner",
    "ValueSettings",
    "adapter_folder",
    "base_model_of",
    "embedded_is_pulled",
    "embedded_path",
    "fitting_plan",
    "load_model",
    "load_weights",
    "plan_memory",
    "pull_embedded",
    "quantization_config",
    "resolve_device",
    "resolve_dtype",
    "resolve_model",
    "save_weights",
]

_LATER = {
    name: module
    for module, names in {
        "attention": ("ATTENTION_NAME",),
        "engine": ("Engine",),
        "learner": ("Learner", "Loss", "LossInputs", "LossOutputs", "TermStreams"),
        "learning_attention": ("KeptKeys", "TreeTables"),
        "load": (
            "load_model",
            "load_weights",
            "quantization_config",
            "resolve_device",
            "resolve_dtype",
            "save_weights",
        ),
        "memory_plan": ("MemoryPlan", "ModelShape", "PlannedSettings", "PlannedWork", "fitting_plan", "plan_memory"),
        "model": ("DEFAULT_ADAPTER", "PolicyModel"),
        "policy": ("Policy",),
        "value_learner": ("ValueLearner",),
    }.items()
    for name in names
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(f".{_LATER[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
