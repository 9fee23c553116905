"""The engine as the sampler of TRL's GRPOTrainer: `GRPOTrainer(…, rollout_func=TRLSampler())`.

It samples from the weights that TRL trains, without a copy or a server. Between two calls the attention, training mode
and cache settings of the model are those of TRL. A rollout function answers with one turn: tools and environments of
the trainer are refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from ...errors import UserError
from ...policy import ATTENTION_NAME, DEFAULT_ADAPTER, EngineSettings, Policy, PolicyError, PolicyModel, TorchThread
from ...tokens import SamplingParams, TokenDelta, TokenRequest

_REFUSED: Mapping[str, object] = {"repetition_penalty": 1.0, "use_vllm": False}
"""Attributes of the trainer, and the only values that the engine supports."""


class TRLSampler:
    """A `rollout_func` for TRL: a completion for each prompt, with ids and log-probabilities.

    Temperature, truncation and length are the trainer's; draws depend on its seed and step only.
    """

    def __init__(self, engine: EngineSettings | None = None) -> None:
        """`engine` has the cache size and the number of concurrent sequences."""
        self._settings = engine
        self._policy: Policy | None = None
        self._model: Any = None
        self._calls: tuple[int, int] = (-1, 0)
        """Step of the trainer, and number of the call within it."""

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, list[list[Any]]]:
        """Sample one completion for each prompt.

        Returns:
            `prompt_ids`, `completion_ids` and `logprobs`, each a list for each prompt.

        Raises:
            UserError: the engine does not support a setting of the trainer.
        """
        _check(trainer)
        prompt_ids = [_ids_of(prompt, trainer) for prompt in prompts]
        settings = self._sampling(trainer, len(prompts))
        adapter = next(iter(_names(_unwrapped(trainer))), DEFAULT_ADAPTER)
        requests = [
            TokenRequest(tuple(ids), sampling, adapter=adapter, delivery="whole")
            for ids, sampling in zip(prompt_ids, settings, strict=True)
        ]
        with self._borrowed(trainer) as policy:
            answers = _sampled(policy, requests)
        return {
            "prompt_ids": prompt_ids,
            "completion_ids": [list(answer.token_ids) for answer in answers],
            "logprobs": [list(answer.logprobs) for answer in answers],
        }

    def close(self) -> None:
        """End the sampling thread; a later call starts another."""
        if self._policy is not None:
            self._policy.close()
            self._policy = self._model = None

    def _sampling(self, trainer: Any, count: int) -> list[SamplingParams]:
        """Return the sampling parameters of each prompt of this call."""
        step = int(trainer.state.global_step)
        before, calls = self._calls
        self._calls = (step, calls + 1 if before == step else 0)
        end_ids = _end_ids(trainer)
        params = []
        for index in range(count):
            text = f"{trainer.args.seed}/{step}/{self._calls[1]}/{index}"
            params.append(
                SamplingParams(
                    temperature=trainer.temperature,
                    top_p=trainer.top_p,
                    top_k=max(trainer.top_k or 0, 0),
                    min_p=trainer.min_p or 0.0,
                    max_tokens=trainer.max_completion_length,
                    seed=int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1,
                    stop_token_ids=end_ids,
                )
            )
        return params

    @contextmanager
    def _borrowed(self, trainer: Any) -> Iterator[Policy]:
        """Lend the trainer's model to the engine for the duration of a block."""
        model = _unwrapped(trainer)
        base = model.get_base_model() if _names(model) else model
        attention, cached = base.config._attn_implementation, base.config.use_cache
        training = [module for module in model.modules() if module.training]
        model.eval()
        try:
            if self._policy is None or self._model is not model:
                self.close()
                self._policy, self._model = self._made(model, base), model
            policy = self._policy
            base.config.use_cache = False
            base.set_attn_implementation(ATTENTION_NAME)
            for name in policy.model.versions:
                policy.run(lambda name=name: policy.weights_changed(name))  # type: ignore[misc]  # bound in the loop
            try:
                yield policy
            finally:
                policy.learn(lambda: None)  # frees the cache and copied layers
        finally:
            base.config.use_cache = cached
            base.set_attn_implementation(attention)
            for module in training:
                module.training = True

    def _made(self, model: Any, base: Any) -> Policy:
        thread, names = TorchThread(), _names(model)
        try:
            if not names:
                return Policy(thread.call(lambda: PolicyModel(base)), self._settings, thread)
            made = thread.call(lambda: PolicyModel(base, peft_model=model, adapters=names))
            return Policy(made, self._settings, thread)
        except BaseException:
            thread.close()
            raise


def _check(trainer: Any) -> None:
    if trainer.tools:
        raise UserError(
            "the engine answers TRL's rollout_func with one turn, but the trainer has tools or environments: train "
            "them here (GRPOTrainerWrapper(environment_factory=…)), or let TRL sample"
        )
    for name, value in _REFUSED.items():
        given = getattr(trainer, name)
        if given != value:
            raise UserError(f"the engine does not do {name}={given!r}: leave it at {value!r}", setting=name)
    if trainer.accelerator.num_processes != 1:
        raise UserError("the engine samples for a trainer of one process: start one, or let TRL sample with vLLM")


def _unwrapped(trainer: Any) -> Any:
    return trainer.accelerator.unwrap_model(trainer.model)


def _names(model: Any) -> list[str]:
    """Return the name of the trained adapter; empty for full training."""
    return [str(model.active_adapter)] if hasattr(model, "peft_config") and hasattr(model, "get_base_model") else []


def _end_ids(trainer: Any) -> tuple[int, ...]:
    """Return the end ids of the tokenizer and of the generation config."""
    config = getattr(_unwrapped(trainer), "generation_config", None)
    configured = None if config is None else config.eos_token_id
    known = [] if configured is None else [configured] if isinstance(configured, int) else list(configured)
    return tuple(dict.fromkeys([int(trainer.processing_class.eos_token_id), *map(int, known)]))


def _ids_of(prompt: Any, trainer: Any) -> list[int]:
    """Return a prompt as token ids, as TRL makes them."""
    processing = trainer.processing_class
    if isinstance(prompt, str):
        ids = processing(text=prompt)["input_ids"]
    else:
        ids = processing.apply_chat_template(
            prompt,
            chat_template=trainer.chat_template,
            tokenize=True,
            add_generation_prompt=True,
            return_dict=False,
            **trainer.chat_template_kwargs,
        )
    return [int(token_id) for token_id in ids]


def _sampled(policy: Policy, requests: Sequence[TokenRequest]) -> list[TokenDelta]:
    """Return the whole answer to each request, in order.

    Raises:
        UserError: a prompt leaves no room, or the engine failed.
    """
    most = policy.engine.settings.max_waiting
    deltas: list[TokenDelta] = []
    for start in range(0, len(requests), most):
        answers: list[tuple[TokenRequest, Future[TokenDelta]]] = [
            (request, Future()) for request in requests[start : start + most]
        ]
        try:
            checked = [policy.engine.checked(request, answer.set_result) for request, answer in answers]
            for sequence in checked:
                policy.engine.queue(sequence)
        except PolicyError as error:
            raise UserError(f"TRL's prompts cannot be sampled from: {error}") from error
        deltas += [answer.result() for _, answer in answers]
    if any(delta.finish_reason == "cancelled" for delta in deltas):
        raise UserError("the engine broke off an answer for TRL: its log says why")
    return deltas
