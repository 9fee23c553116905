"""The main job on two vLLM servers, one of which is killed while it samples for step 2 and is back for step 3.

`make test-real VLLM_PYTHON=… ARGS="-s -k main_job"` prints the figures that docs/scaling.md names.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections import Counter
from pathlib import Path

import psutil

from mini_agentic_rl import SqlLightningStore
from mini_agentic_rl.commands.train import train_job
from mini_agentic_rl.commands.train_config import TrainConfig
from mini_agentic_rl.gateway import served_policy
from mini_agentic_rl.metrics import read_metrics
from mini_agentic_rl.samplers import SamplerPool, make_sampler
from mini_agentic_rl.samplers import pool as pool_module
from mini_agentic_rl.samplers.pool import Replica
from mini_agentic_rl.semconv import CompletionSpanAttributes
from samplers.vllm_wire import until_all_are_well

STEPS, TASKS, SAMPLES = 4, 4, 4
STEP_2 = 3
"""Number of its weights, in the order in which rollouts are sampled with them: first come those before the imitation,
then those after it, which sample step 1."""
BACK_SECONDS = 900.0


class Stage:
    """The pool of the job, as the test looks at it and kills one of its servers."""

    def __init__(self, monkeypatch):
        self.pool = None
        self.killed_at = 0.0
        self.back_after = 0.0
        self.victim = None
        self.served = Counter()
        """Answers that were begun, by the weights' number and the server's."""
        self.kept = []
        """Tokens that answers had when they went on elsewhere."""
        self.parities = []
        self._weights = []
        sample, publish, rest = Replica.sample, SamplerPool.publish, pool_module._rest

        def made(*given, **named):
            self.pool = make_sampler(*given, **named)
            return self.pool

        async def sampled(replica, generation, on_chunk, silence):
            if isinstance(getattr(on_chunk, "__self__", None), pool_module._Answer):  # a rollout's, not a comparison's
                on_chunk = self._watched(replica, generation, on_chunk)
            await sample(replica, generation, on_chunk, silence)

        async def published(pool, *given):
            if self.killed_at and not self.back_after:
                await until_all_are_well(pool, BACK_SECONDS)
                self.back_after = time.monotonic() - self.killed_at
            await publish(pool, *given)
            self.parities += [one.difference for one in pool.parities.values()]

        def counted(sampling, done):
            self.kept += [done] if done else []
            return rest(sampling, done)

        monkeypatch.setattr(served_policy, "make_sampler", made)
        monkeypatch.setattr(Replica, "sample", sampled)
        monkeypatch.setattr(SamplerPool, "publish", published)
        monkeypatch.setattr(pool_module, "_rest", counted)
        monkeypatch.setattr(pool_module, "_WHOLE_INTERVAL", 4)  # else most answers are one piece: nothing to go on from

    def _watched(self, replica, generation, on_chunk):
        if generation.adapter not in self._weights:
            self._weights.append(generation.adapter)
        number = self._weights.index(generation.adapter) + 1
        self.served[number, self.pool.replicas.index(replica)] += 1

        def take(chunk):
            on_chunk(chunk)
            if number == STEP_2 and not self.killed_at and chunk.token_ids and chunk.finish_reason is None:
                self.victim = replica
                self.killed_at = time.monotonic()
                os.kill(process_of(replica), signal.SIGKILL)

        return take


def process_of(replica):
    port = replica.url.rpartition(":")[2]
    (process,) = (
        one for one in psutil.Process().children(recursive=True) if port in one.cmdline() and "serve" in one.cmdline()
    )
    return process.pid


def records(database):
    """Return status, attempts and the versions of sampled tokens of each rollout in the store."""

    async def read():
        store = SqlLightningStore(database)
        try:
            found = []
            for one in await store.query_rollouts():
                versions = Counter()
                for span in await store.query_spans(one.rollout_id, "latest"):
                    ids = span.attributes.get(CompletionSpanAttributes.RESPONSE_TOKEN_IDS)
                    if ids is not None:
                        at = span.attributes[CompletionSpanAttributes.POLICY_VERSION]
                        versions.update(span.attributes.get(CompletionSpanAttributes.POLICY_VERSIONS, [at] * len(ids)))
                found.append((one.status, one.attempt.sequence_id, versions))
            return found
        finally:
            await store.close()

    return asyncio.run(read())


def test_the_main_job_on_two_servers_one_of_which_is_killed(tmp_path, monkeypatch):
    python = os.environ.get("VLLM_PYTHON")
    assert python, "VLLM_PYTHON has to be the Python of an environment with vLLM"
    for name, value in {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    stage = Stage(monkeypatch)
    config = TrainConfig(
        output_dir=tmp_path / "run",
        sampler="vllm",
        sampler_replicas=2,
        vllm_python=Path(python),
        sampler_args="--max-model-len 1024",
        dtype="bfloat16",
        total_steps=STEPS,
        tasks_per_step=TASKS,
        samples_per_prompt=SAMPLES,
        kl_coef=0.01,  # a step whose rewards are all equal makes new weights too
        sft_examples=64,
        difficulty=[1],
        eval_size=4,
        transfer_size=0,
    )
    begun = time.monotonic()
    summary = train_job(config)
    rows = [row for row in read_metrics(tmp_path / "run" / "metrics.jsonl") if "seconds/sampling" in row]
    found = records(f"sqlite+aiosqlite:///{tmp_path / 'run' / 'rollouts.db'}")
    versions = sum((of_one for _, _, of_one in found), Counter())
    victim = stage.pool.replicas.index(stage.victim)
    mismatches = [value for row in rows for name, value in row.items() if name.startswith("mismatch/")]
    figures = {
        "seconds": round(time.monotonic() - begun),
        "seconds_of_steps": [round(row["seconds/sampling"] + row["seconds/learning"]) for row in rows],
        "rollouts": len(found),
        "tokens_by_version": dict(sorted(versions.items())),
        "back_after_seconds": round(stage.back_after),
        "moved": stage.pool.moved,
        "kept_tokens": stage.kept,
        "answers_by_weights_and_server": {
            f"{one} {other}": count for (one, other), count in sorted(stage.served.items())
        },
        "parity": [round(one, 4) for one in stage.parities],
        "mismatch": [round(one, 4) for one in mismatches],
        "rewards": [round(row["reward/mean"], 3) for row in rows if "reward/mean" in row],
        "untrained": summary["untrained"],
    }
    print(json.dumps(figures))  # what the page tells

    assert len(rows) == STEPS
    assert {(status, attempts) for status, attempts, _ in found} == {("succeeded", 1)}, "nothing is lost or run again"
    assert len(found) > STEPS * TASKS * SAMPLES
    assert all(len(of_one) == 1 for _, _, of_one in found), "one version samples all of a rollout"
    before, *trained = sorted(versions)
    assert before == 0
    assert trained == list(range(trained[0], trained[0] + STEPS + 1))
    assert max(stage.parities) < stage.pool.parity_bound
    assert stage.victim.lost_times == 1
    assert stage.kept, "answers under way went on from their tokens"
    assert stage.served[STEP_2 + 1, victim] > 0, "it samples again in step 3"
    assert stage.back_after > 0
