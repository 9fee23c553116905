"""The processes of test_killed_processes.py: `training_roles.py learner|runners|sampler OPTIONS`, a JSON object.

The learner notes in a file the rollouts of each optimizer step, right after the step. The agent calls the model twice;
its reward follows from the rollout's id.
"""

from __future__ import annotations

import hashlib
import json
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from openai import AsyncOpenAI

from mini_agentic_rl import LightningStoreClient, LitAgent, MiniGRPO, Trainer
from mini_agentic_rl.algorithm.groups import Group
from mini_agentic_rl.execution import ClientServerExecutionStrategy
from mini_agentic_rl.metrics import MetricsLogger
from mini_agentic_rl.policy import LoraSettings
from mini_agentic_rl.runner import LitAgentRunner
from mini_agentic_rl.samplers import SamplerSettings
from samplers.vllm_wire import VllmWireServer


class Noting:
    """An objective that notes what it has learnt from."""

    def __init__(self, objective: Any, algorithm: NotingGRPO) -> None:
        self._objective, self._algorithm = objective, algorithm

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objective, name)

    def update(self, adapter: str, groups: Sequence[Group]) -> dict[str, float]:
        learnt: dict[str, float] = self._objective.update(adapter, groups)
        ids = [one.rollout_id for group in groups for one in group.trajectories]
        with self._algorithm.notes.open("a") as notes:
            notes.write(json.dumps({"step": self._algorithm.progress.step, "rollouts": ids}) + "\n")
        return learnt


class NotingGRPO(MiniGRPO):
    """GRPO that notes what it has learnt from."""

    notes: Path

    def objective(self, *arguments: Any) -> Any:
        return Noting(super().objective(*arguments), self)


class Talker(LitAgent[Any]):
    """Calls the model twice in one conversation."""

    def __init__(self) -> None:
        super().__init__()
        self._client: AsyncOpenAI | None = None

    async def rollout_async(self, task: Any, resources: Mapping[str, Any], rollout: Any) -> float:
        llm = resources["llm"]
        if self._client is None:
            self._client = AsyncOpenAI(
                api_key=llm.api_key or "none", base_url=llm.endpoint, max_retries=20, timeout=600
            )
        ids = rollout.rollout_id, rollout.attempt.attempt_id
        client = self._client.with_options(api_key=llm.api_key or "none", base_url=llm.get_base_url(*ids))
        messages: list[Any] = [{"role": "user", "content": task["word"]}]
        for _ in range(2):
            reply = await client.chat.completions.create(model=llm.model, messages=messages, **llm.sampling_parameters)
            said = reply.choices[0].message.content or ""
            messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "More."}]
        return int.from_bytes(hashlib.sha256(ids[0].encode()).digest()[:4], "big") / 2**32


def _store(options: Mapping[str, Any]) -> LightningStoreClient:
    return LightningStoreClient(options["store"], api_key=options["api_key"], retry_seconds=300)


def learn(options: Mapping[str, Any]) -> None:
    """Train, from the last checkpoint where there is one."""
    servers = SamplerSettings(
        sampler="vllm",
        sampler_url=options["samplers"],
        sampler_folder=Path(options["folder"]).parent / "weights",
    )
    algorithm = NotingGRPO(
        options["model"],
        lora=LoraSettings(r=4, alpha=8),  # what the servers have room for
        load_options={"device": "cpu", "dtype": "float32"},
        sampler=servers,
        **options["algorithm"],
    )
    algorithm.notes = Path(options["notes"])
    tasks = [{"word": f"word {number}"} for number in range(options["algorithm"]["tasks_per_step"])]
    Trainer(
        algorithm=algorithm,
        strategy=ClientServerExecutionStrategy(role="algorithm", managed_store=False, silent_seconds=10),
        store=_store(options),
        output_dir=options["folder"],
        logger=MetricsLogger(),
        resume=True,
    ).fit(Talker(), tasks)


def run_agents(options: Mapping[str, Any]) -> None:
    """Run the agent until the process is ended."""
    runners = ClientServerExecutionStrategy(
        role="runner", main_process="runner", n_runners=options["runners"], managed_store=False
    )
    runner: LitAgentRunner[Any] = LitAgentRunner(heartbeat_interval=1.0)
    trainer = Trainer(strategy=runners, runner=runner, store=_store(options), logger=MetricsLogger())
    trainer.fit(Talker())


def sample(options: Mapping[str, Any]) -> None:
    """Be a server that speaks vLLM's wire, until the process is ended."""
    VllmWireServer(options["model"], port=options["port"])
    sys.stdout.write("serving\n")
    sys.stdout.flush()
    signal.pause()


if __name__ == "__main__":
    {"learner": learn, "runners": run_agents, "sampler": sample}[sys.argv[1]](json.loads(sys.argv[2]))
