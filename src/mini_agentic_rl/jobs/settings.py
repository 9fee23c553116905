"""The settings of the jobs behind the commands. Each field is one option: its docstring is the help text.

`json_schema_extra` may hold "panel" (the group of the help page) and "option" (an option name other than the field's).
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic.config import JsonDict

from ..config import Settings
from ..gateway import RolloutLimits, ThinkingName, ToolFormatName
from ..http import RequestLimits
from ..metrics import LoggerName
from .critic_settings import CriticSettings

DType = Literal["auto", "float32", "bfloat16", "float16"]
Quantization = Literal["none", "4bit", "8bit"]

_MODEL: JsonDict = {"panel": "Model"}
_TASKS: JsonDict = {"panel": "Tasks"}
_SFT: JsonDict = {"panel": "Warm-up (SFT)"}
_RL: JsonDict = {"panel": "Reinforcement learning"}
_LOSS: JsonDict = {"panel": "Rewards and loss"}
_RUN: JsonDict = {"panel": "Run"}
_JSON: JsonDict = {"panel": "Run", "option": "--json"}
_SERVER: JsonDict = {"panel": "Server"}


class ModelSettings(Settings):
    """Which model, and how it is loaded."""

    model: str = Field(default="embedded", json_schema_extra=_MODEL)
    """Model: `embedded` (SmolLM2-135M-Instruct, fetched when first needed), a Hugging Face id, or a local folder."""
    dtype: DType = Field(default="auto", json_schema_extra=_MODEL)
    """Number format of the weights; auto takes what the model and the device are best at."""
    device: str = Field(default="auto", json_schema_extra=_MODEL)
    """Where to compute: auto, cpu, cuda, cuda:1, mps."""
    quantization: Quantization = Field(default="none", json_schema_extra=_MODEL)
    """Load the base weights in 4 or 8 bits (needs bitsandbytes: the `quant` extra)."""


class AnswerSettings(ModelSettings):
    """How a model's answers are read, and its history written."""

    tool_format: ToolFormatName = Field(default="auto", json_schema_extra=_MODEL)
    """How tool calls are written; auto takes what the chat template writes, Hermes where that cannot be read back."""
    thinking: ThinkingName = Field(default="auto", json_schema_extra=_MODEL)
    """What the model is shown of its earlier thoughts: `keep` all, `drop` all, `fork` (as the chat template does it);
    `off`: think tags are ordinary text; auto is fork for models that know think tags, off for others."""


class TrainSettings(CriticSettings, RolloutLimits, AnswerSettings):
    """What `train` does."""

    lora_r: int = Field(default=8, ge=1, json_schema_extra=_MODEL)
    """Rank of the LoRA adapter."""
    lora_alpha: int = Field(default=16, ge=1, json_schema_extra=_MODEL)
    """Scale of the LoRA adapter: its output is multiplied by alpha / rank."""
    full_finetune: bool = Field(default=False, json_schema_extra=_MODEL)
    """Train every weight instead of a LoRA adapter."""

    agent: str = Field(default="math", json_schema_extra=_TASKS)
    """Agent to train: `math`, `sql` (with the defaults of `train-sql`), or `module:ClassName` of a LitAgent of
    yours."""
    dataset: str = Field(default="arithmetic", json_schema_extra=_TASKS)
    """Tasks: `arithmetic` (generated), `medical` (for the SQL agent), `gsm_symbolic`, `gsm8k`, a file (JSONL, JSON,
    CSV, TSV or Parquet) with `question` and `answer`, a folder with such files, or `owner/name` on the Hub."""
    difficulty: list[int] = Field(default=[1, 2], json_schema_extra=_TASKS)
    """Levels of the arithmetic and medical tasks, from 1 to 4; give it several times for several levels."""
    max_samples: int | None = Field(default=None, ge=1, json_schema_extra=_TASKS)
    """Train on at most this many tasks; by default on all (of arithmetic 10,000, of medical 2,000)."""
    eval_size: int = Field(default=200, ge=1, json_schema_extra=_TASKS)
    """How many held-out problems measure the accuracy, before, between and after."""

    sft_examples: int = Field(default=32, ge=0, json_schema_extra=_SFT)
    """How many generated example conversations to imitate before reinforcement learning; 0 leaves it out."""
    sft_learning_rate: float = Field(default=1e-3, gt=0, json_schema_extra=_SFT)
    """Peak learning rate of the imitation."""

    algorithm: Literal["grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo", "reinforce++", "ppo"] = Field(
        default="grpo", json_schema_extra=_RL
    )
    """Published algorithm. It decides what is not given by name under "Rewards and loss"; `ppo` has a critic."""
    backend: Literal["native", "trl"] = Field(default="native", json_schema_extra=_RL)
    """Who turns rewards into new weights: this package, or TRL's GRPOTrainer (needs the `trl` extra)."""
    total_steps: int = Field(default=12, ge=0, json_schema_extra=_RL)
    """Reinforcement-learning steps; each draws new tasks. 0 leaves reinforcement learning out."""
    total_epochs: int | None = Field(default=None, ge=0, json_schema_extra=_RL)
    """Passes over the training tasks, in place of the number of steps."""
    tasks_per_step: int = Field(default=12, ge=1, json_schema_extra=_RL)
    """Tasks drawn in each step."""
    samples_per_prompt: int = Field(default=8, ge=1, json_schema_extra=_RL)
    """Rollouts of each task: the group whose rewards are compared with each other."""
    temperature: float = Field(default=1.0, gt=0, json_schema_extra=_RL)
    """Sampling temperature of training rollouts."""
    max_new_tokens: int | None = Field(default=None, ge=1, json_schema_extra=_RL)
    """At most this many sampled tokens in one model call; by default what the agent needs: 96 for `sql`, else 48."""
    learning_rate: float = Field(default=8e-4, gt=0, json_schema_extra=_RL)
    """Peak learning rate; full fine-tuning wants about a tenth of what LoRA wants."""
    warmup_steps: int = Field(default=0, ge=0, json_schema_extra=_RL)
    """Steps over which the learning rate rises."""
    lr_schedule: Literal["constant", "linear", "cosine"] = Field(default="linear", json_schema_extra=_RL)
    """How the learning rate falls over the steps."""
    credit: Literal["broadcast", "last_call", "per_turn", "discounted"] = Field(
        default="broadcast", json_schema_extra=_RL
    )
    """Which reward each call of a rollout is trained with: the final one, the final one for the last call alone, the
    final one plus what was emitted after the call, or the discounted sum of what was emitted from the call on."""
    credit_discount: float = Field(default=0.95, gt=0, le=1, json_schema_extra=_RL)
    """Discount per call of `--credit discounted`."""
    dynamic_sampling: bool | None = Field(default=None, json_schema_extra=_RL)
    """Draw further tasks in place of those whose rollouts all got the same reward (DAPO, Yu et al. 2025)."""
    max_sampling_rounds: int = Field(default=4, ge=1, json_schema_extra=_RL)
    """At most this often a step draws tasks with `--dynamic-sampling`."""
    curriculum: Literal["none", "pass_rate"] = Field(default="none", json_schema_extra=_RL)
    """How tasks are drawn: each once an epoch, or those more often that are solved about half of the time."""
    epochs_per_batch: int = Field(default=1, ge=1, json_schema_extra=_RL)
    """How often each batch of rollouts is trained on."""
    max_batch_tokens: int = Field(default=450, ge=1, json_schema_extra=_RL)
    """Packed tokens per forward-backward pass; bounds the memory of learning."""
    gradient_checkpointing: bool = Field(default=False, json_schema_extra=_RL)
    """Recompute activations in the backward pass: less memory, about a third more time for learning."""
    cache_mib: int = Field(default=768, ge=1, json_schema_extra=_RL)
    """Size of the sampler's key/value cache in MiB; it is given back while learning."""
    preset: Literal["none", "4gb"] = Field(default="none", json_schema_extra=_RL)
    """`4gb` chooses quantization, checkpointing, tokens per pass and cache so that the run fits a card (or a process on
    the CPU) of 4 GB, as `mini-agentic-rl plan --vram 4GB` does; it only ever saves more than was asked for."""
    n_runners: int = Field(default=128, ge=1, json_schema_extra=_RL)
    """Rollouts that run at the same time."""
    rollout_timeout: float = Field(default=300.0, gt=0, json_schema_extra=_RL)
    """Seconds after which a rollout is ended and has failed."""
    on_failure: Literal["drop", "zero", "retry"] = Field(default="drop", json_schema_extra=_RL)
    """What becomes of a rollout that fails: it is left out, counts as reward 0 if it has called the model, or is tried
    again."""
    max_attempts: int = Field(default=3, ge=1, json_schema_extra=_RL)
    """At most this many attempts at a rollout with `--on-failure retry`."""

    baseline: Literal["group", "leave_one_out", "none"] | None = Field(default=None, json_schema_extra=_LOSS)
    """What a reward is compared with: the mean of its group, the mean of the group's others, or nothing."""
    normalize_advantage: bool | None = Field(default=None, json_schema_extra=_LOSS)
    """Divide advantages by a standard deviation."""
    advantage_normalization: Literal["group", "batch"] | None = Field(default=None, json_schema_extra=_LOSS)
    """By that of the group, or by that of the batch, whose mean is then subtracted too."""
    policy_loss: Literal["clip", "gspo", "cispo"] | None = Field(default=None, json_schema_extra=_LOSS)
    """What is maximised: the clipped ratio of each token, that of each rollout, or the log-probability under a clipped
    weight."""
    clip_ratio: float | None = Field(default=None, gt=0, le=1, json_schema_extra=_LOSS)
    """Lower bound of the ratio is 1 minus this (PPO, Schulman et al. 2017, equation 7)."""
    clip_ratio_high: float | None = Field(default=None, gt=0, json_schema_extra=_LOSS)
    """Upper bound is 1 plus this; by default as much as the lower one."""
    loss_aggregation: Literal["token", "sequence", "dr_grpo"] | None = Field(default=None, json_schema_extra=_LOSS)
    """How token losses are averaged: over all tokens, per rollout first, or by a constant (Dr. GRPO)."""
    max_trajectory_tokens: int = Field(default=1024, ge=1, json_schema_extra=_LOSS)
    """That constant: about the most tokens a rollout samples."""
    importance_correction: Literal["none", "token", "sequence"] | None = Field(default=None, json_schema_extra=_LOSS)
    """Weigh by what learner and sampler differ by, token by token or for the whole rollout."""
    importance_cap: float = Field(default=2.0, gt=0, json_schema_extra=_LOSS)
    """The most that such a weight can be."""
    kl_coef: float = Field(default=0.0, ge=0, json_schema_extra=_LOSS)
    """Weight of the KL divergence from the reference policy: the model with the adapter off."""
    kl_estimator: Literal["k1", "k2", "k3"] = Field(default="k3", json_schema_extra=_LOSS)
    """Which estimator of it is differentiated, where it is in the loss: k2 has the gradient of the reverse divergence,
    k3 that of the forward one, k1 none."""
    kl_in_reward: bool | None = Field(default=None, json_schema_extra=_LOSS)
    """Take it, as k1, off the reward instead of adding it to the loss."""
    entropy_coef: float = Field(default=0.0, ge=0, json_schema_extra=_LOSS)
    """Weight of the entropy bonus."""
    mask_truncated: bool = Field(default=False, json_schema_extra=_LOSS)
    """Leave rollouts that ended at a length bound out of the loss."""
    overlong_buffer: float | None = Field(default=None, ge=0, le=1, json_schema_extra=_LOSS)
    """The last part of `--max-new-tokens`, as a share, in which a call's length is punished (DAPO, equation 13)."""
    overlong_penalty: float = Field(default=1.0, ge=0, json_schema_extra=_LOSS)
    """What a call as long as `--max-new-tokens` then takes off the reward."""

    output_dir: Path = Field(default=Path("outputs/math-agent"), json_schema_extra=_RUN)
    """Folder of the run: configuration, metrics, adapter, checkpoints, rollouts, report."""
    seed: int = Field(default=0, ge=0, json_schema_extra=_RUN)
    """Seed of tasks, sampling and initial weights."""
    deterministic: bool = Field(default=False, json_schema_extra=_RUN)
    """Sample each request alone, so that a run is repeated exactly (float32 on one CPU); slow."""
    eval_every: int = Field(default=0, ge=0, json_schema_extra=_RUN)
    """Measure the accuracy every this many steps as well; 0 does so at the beginning and the end only."""
    checkpoint_every: int = Field(default=5, ge=1, json_schema_extra=_RUN)
    """Steps between checkpoints."""
    loggers: list[LoggerName] = Field(default=["console", "jsonl"], json_schema_extra=_RUN)
    """Where metrics go; give it several times for several loggers."""
    resume: bool = Field(default=False, json_schema_extra=_RUN)
    """Continue the run in the output folder from its last checkpoint."""
    overwrite: bool = Field(default=False, json_schema_extra=_RUN)
    """Replace the run in the output folder."""
    json_output: bool = Field(default=False, json_schema_extra=_JSON)
    """Print the summary as JSON on standard output."""

    @property
    def call_tokens(self) -> int:
        """`max_new_tokens`, or its default for the agent."""
        return self.max_new_tokens or (96 if self.agent == "sql" else 48)


class PlanSettings(ModelSettings):
    """What `plan` predicts."""

    vram: str | None = Field(default=None, json_schema_extra={"panel": "Memory"})
    """Memory to fit into, as 4GB or 3500MB; settings that save memory are then chosen as needed. Without it the
    settings are planned as they are given. On a card bitsandbytes (the `quant` extra) is taken to be there."""

    tasks_per_step: int = Field(default=8, ge=1, json_schema_extra=_RL)
    """Tasks drawn in each step."""
    samples_per_prompt: int = Field(default=8, ge=2, json_schema_extra=_RL)
    """Rollouts of each task."""
    prompt_tokens: int = Field(default=512, ge=1, json_schema_extra=_RL)
    """Tokens of a task's prompt, system prompt and tools included."""
    max_new_tokens: int = Field(default=512, ge=1, json_schema_extra=_RL)
    """Tokens that a rollout samples in all its calls together."""

    lora_r: int = Field(default=8, ge=1, json_schema_extra={"panel": "Memory"})
    """Rank of the LoRA adapter."""
    gradient_checkpointing: bool = Field(default=False, json_schema_extra={"panel": "Memory"})
    """Recompute activations in the backward pass."""
    max_batch_tokens: int = Field(default=450, ge=1, json_schema_extra={"panel": "Memory"})
    """Packed tokens per forward-backward pass."""
    cache_mib: int = Field(default=768, ge=1, json_schema_extra={"panel": "Memory"})
    """Size of the key/value cache in MiB."""
    json_output: bool = Field(default=False, json_schema_extra=_JSON)
    """Print the plan as JSON on standard output."""


class EvalSettings(AnswerSettings):
    """What `eval` does. It never trains."""

    adapter: Path | None = Field(default=None, json_schema_extra=_MODEL)
    """Folder of a trained adapter; without it the model is measured as it is."""

    agent: str = Field(default="math", json_schema_extra=_TASKS)
    """Agent to measure: `math`, `sql` (by default on the tasks of `train-sql`), or `module:ClassName` of a LitAgent of
    yours."""
    dataset: str = Field(default="arithmetic", json_schema_extra=_TASKS)
    """Tasks: `arithmetic` (generated), `medical` (for the SQL agent), `gsm_symbolic`, `gsm8k`, a file (JSONL, JSON,
    CSV, TSV or Parquet) with `question` and `answer`, a folder with such files, or `owner/name` on the Hub."""
    difficulty: list[int] = Field(default=[1, 2], json_schema_extra=_TASKS)
    """Levels of the arithmetic and medical tasks, from 1 to 4; give it several times for several levels."""
    split: Literal["train", "val", "test"] = Field(default="test", json_schema_extra=_TASKS)
    """Which part of the tasks; of a single file, `test` is the whole."""
    size: int = Field(default=200, ge=1, json_schema_extra=_TASKS)
    """How many problems, at most."""

    samples: int = Field(default=1, ge=1, json_schema_extra={"panel": "Sampling"})
    """Tries at each problem; with k tries pass@1 to pass@k are reported."""
    temperature: float | None = Field(default=None, ge=0, json_schema_extra={"panel": "Sampling"})
    """Sampling temperature; by default 0 for one try and 1 for several."""
    max_new_tokens: int = Field(default=128, ge=1, json_schema_extra={"panel": "Sampling"})
    """At most this many sampled tokens in one model call."""
    n_runners: int = Field(default=128, ge=1, json_schema_extra={"panel": "Sampling"})
    """Rollouts that run at the same time."""
    rollout_timeout: float = Field(default=300.0, gt=0, json_schema_extra={"panel": "Sampling"})
    """Seconds after which a rollout is ended and counts as wrong."""

    seed: int = Field(default=0, ge=0, json_schema_extra=_RUN)
    """Seed of tasks and sampling."""
    output: Path | None = Field(default=None, json_schema_extra=_RUN)
    """JSON file for the result, every rollout's answer included."""
    json_output: bool = Field(default=False, json_schema_extra=_JSON)
    """Print the result as JSON on standard output."""


class ChatSettings(ModelSettings):
    """What `chat` does."""

    adapter: Path | None = Field(default=None, json_schema_extra=_MODEL)
    """Folder of a trained adapter."""
    temperature: float = Field(default=0.0, ge=0, json_schema_extra={"panel": "Chat"})
    """Sampling temperature; 0 always takes the likeliest token."""
    max_new_tokens: int = Field(default=256, ge=1, json_schema_extra={"panel": "Chat"})
    """At most this many sampled tokens in one model call."""
    max_turns: int = Field(default=4, ge=1, json_schema_extra={"panel": "Chat"})
    """At most this many model calls for one message of yours."""
    tools: bool = Field(default=True, json_schema_extra={"panel": "Chat"})
    """Offer the math agent's tools to the model, under its system prompt."""


class ServeSettings(RequestLimits, AnswerSettings):
    """What `serve` does."""

    adapter: Path | None = Field(default=None, json_schema_extra=_MODEL)
    """Folder of a trained adapter."""
    host: str = Field(default="127.0.0.1", json_schema_extra=_SERVER)
    """Address to listen on; 0.0.0.0 lets other machines in."""
    port: int = Field(default=8000, ge=0, le=65535, json_schema_extra=_SERVER)
    """Port to listen on; 0 takes a free one."""
    api_key: list[str] = Field(default=[], json_schema_extra=_SERVER)
    """Key that clients must send; give it several times for several clients. Without any key everybody who reaches the
    port may ask."""
    api_key_file: Path | None = Field(default=None, json_schema_extra=_SERVER)
    """File with one such key on each line: other users of this computer cannot read it off the command line."""
    cache_mib: int = Field(default=768, ge=1, json_schema_extra=_SERVER)
    """Size of the key/value cache in MiB; requests that do not fit into it wait."""
    max_waiting: int = Field(default=4096, ge=1, json_schema_extra=_SERVER)
    """At most this many requests wait for their turn; more are refused with 429 and told when to come again."""
