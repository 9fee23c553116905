"""A stand-in for TRL's trainer, as a `rollout_func` sees it: settings, the tokenizer, and a sampler.

It samples as TRL's functions do that use vLLM: `trainer.vllm_generation.generate(prompts, …)` takes token ids,
`trainer.vllm_client.generate(prompts, n=…)` texts or ids. Weights and optimizer of the trainer are not to be had.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

import httpx

from ...attribution import unrecorded
from ...types import LLM

_AT_ONCE: Final = 64
_SECONDS: Final = 600.0


@dataclass(frozen=True)
class Drawn:
    """The circumstances under which a completion was sampled."""

    version: int
    temperature: float


class RolloutTrainer:
    """Stands for TRL's GRPOTrainer in one call of a rollout function."""

    def __init__(self, llm: LLM, processing_class: Any) -> None:
        """
        Args:
            llm: samples, with its sampling parameters.
            processing_class: the model's tokenizer.
        """
        said = llm.sampling_parameters
        self.processing_class = processing_class
        self.temperature = float(said.get("temperature", 1.0))
        self.top_p = float(said.get("top_p", 1.0))
        self.top_k, self.min_p, self.repetition_penalty = 0, None, 1.0
        self.max_completion_length = int(said.get("max_completion_tokens") or said.get("max_tokens") or 256)
        self.num_generations = self.num_generations_eval = 1
        self.use_vllm, self.vllm_mode, self.chat_template = True, "server", None
        self.chat_template_kwargs: dict[str, Any] = {}
        self.tools: list[Any] = []
        self.eos_token_ids = [processing_class.eos_token_id]
        self.accelerator = SimpleNamespace(device="cpu", is_main_process=True, process_index=0, num_processes=1)
        self.state = SimpleNamespace(global_step=0)
        names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_completion_length")
        shared = {name: getattr(self, name) for name in (*names, "num_generations", "chat_template_kwargs")}
        self.args = SimpleNamespace(**shared, seed=0)
        self.model_name = llm.model
        self._llm = llm
        self._drawn: dict[tuple[int, ...], Drawn] = {}
        self.vllm_generation = SimpleNamespace(generate=self._generate, sync_weights=lambda: None)
        self.vllm_client = SimpleNamespace(generate=self._complete)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"this rollout_func asks TRL's trainer for {name!r}, which it does not have here: sample with "
            "trainer.vllm_generation.generate or trainer.vllm_client.generate"
        )

    def drawn(self, token_ids: Sequence[int]) -> Drawn:
        """Return how a completion was sampled; one that was not sampled here counts as the last that was."""
        last = next(reversed(self._drawn.values()), Drawn(0, self.temperature))
        return self._drawn.get(tuple(token_ids), last)

    def _generate(
        self, prompts: Sequence[Sequence[int]], images: Any = None, num_generations: int = 1, profiler: Any = None
    ) -> tuple[Any, Any, Any, Any]:
        """Sample one completion for each prompt, of which TRL's callers repeat each `num_generations` times."""
        if images is not None and any(image is not None for image in images):
            raise ValueError("images are not sampled after here")
        found = self._complete(prompts, max_tokens=self.max_completion_length, **self._usual())
        return found["prompt_ids"], found["completion_ids"], found["logprobs"], found["logprob_token_ids"]

    def _usual(self) -> dict[str, Any]:
        return {"temperature": self.temperature, "top_p": self.top_p}

    def _complete(
        self,
        prompts: Sequence[Any],
        *_: Any,
        n: int = 1,
        temperature: float | None = None,
        top_p: float | None = None,
        top_k: int = 0,
        min_p: float = 0.0,
        max_tokens: int | None = None,
        generation_kwargs: Mapping[str, Any] | None = None,
        **others: Any,
    ) -> dict[str, list[Any]]:
        if others.get("repetition_penalty", 1.0) != 1.0 or others.get("structured_outputs_regex"):
            raise ValueError("repetition_penalty and structured_outputs_regex are not served here: leave them out")
        warmth = self.temperature if temperature is None else temperature
        body = {
            "model": self._llm.model,
            "n": n,
            "temperature": warmth,
            "top_p": self.top_p if top_p is None else top_p,
            "top_k": max(top_k or 0, 0),
            "min_p": min_p or 0.0,
            "max_tokens": max_tokens or self.max_completion_length,
            "logprobs": 0,
            "return_token_ids": True,
            **(generation_kwargs or {}),
        }
        requests = [{**body, "prompt": prompt if isinstance(prompt, str) else list(prompt)} for prompt in prompts]
        headers = {"Authorization": f"Bearer {self._llm.api_key or 'none'}"}
        with unrecorded(), httpx.Client(timeout=_SECONDS, headers=headers) as client:

            def ask(request: dict[str, Any]) -> dict[str, Any]:
                answer = client.post(f"{self._llm.endpoint}/completions", json=request)
                if answer.is_error:
                    raise ValueError(f"the endpoint refused to sample: {_reason(answer)}")
                told: dict[str, Any] = answer.json()
                return told

            contexts = [copy_context() for _ in requests]
            with ThreadPoolExecutor(min(_AT_ONCE, max(1, len(requests)))) as threads:
                answers = list(threads.map(lambda context, body: context.run(ask, body), contexts, requests))
        choices = [choice for answer in answers for choice in answer["choices"]]
        for answer in answers:
            version = int(str(answer.get("system_fingerprint") or "policy-0").rpartition("-")[2])
            for choice in answer["choices"]:
                self._drawn[tuple(choice["token_ids"])] = Drawn(version, warmth)
        return {
            "prompt_ids": [answer["choices"][0]["prompt_token_ids"] for answer in answers],
            "completion_ids": [choice["token_ids"] for choice in choices],
            "logprobs": [[[value] for value in choice["logprobs"]["token_logprobs"]] for choice in choices],
            "logprob_token_ids": [[[token_id] for token_id in choice["token_ids"]] for choice in choices],
        }


def _reason(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"status {answer.status_code}"
