"""An engine whose model computes nothing: a token depends on its sequence's seed and its position alone."""

from __future__ import annotations

from dataclasses import dataclass, field

from mini_agentic_rl.policy.drafts import Drafts, Guess
from mini_agentic_rl.policy.kv_cache import BlockCache
from mini_agentic_rl.policy.sampler import Draw
from mini_agentic_rl.policy.scheduler import Scheduler
from mini_agentic_rl.policy.step_batch import RunningSequence, StepPlan
from mini_agentic_rl.tokens import SamplingParams, TokenDelta, TokenRequest


def token_at(seed: int, position: int) -> int:
    """The token that the fake pass draws."""
    return (7 * seed + 13 * position) % 97 + 100


@dataclass
class Asked:
    """A request and what it was given."""

    sequence: RunningSequence
    deltas: list[TokenDelta]

    @property
    def tokens(self) -> list[int]:
        return [token for delta in self.deltas for token in delta.token_ids]

    @property
    def reason(self) -> str | None:
        return self.deltas[-1].finish_reason if self.deltas else None


class KnowingDrafts(Drafts):
    """Guesses of what the fake pass draws: right ones, but for every third pass, in which the last one is wrong."""

    def __init__(self, longest: int) -> None:
        super().__init__(longest)
        self.seeds: dict[int, int] = {}
        self.passes = 0

    def guess(self, sequences, rooms, budget):
        self.passes += 1
        found = []
        for indexed, room in zip(sequences, rooms, strict=True):
            at = len(indexed.tokens)
            tokens = [token_at(self.seeds[id(indexed.tokens)], at + n) for n in range(min(room, self._longest))]
            tokens = tokens[: max(budget, 0)]
            budget -= len(tokens)
            if tokens and self.passes % 3 == 0:
                tokens[-1] += 1
            found.append(Guess(tuple(tokens), 2) if tokens else None)
        return found


@dataclass
class FakeEngine:
    """A scheduler, and passes that compute nothing."""

    blocks: int = 100
    budget: int = 16
    max_running: int = 8
    context_length: int = 64
    drafts: Drafts | None = None
    versions: dict[str, int] = field(default_factory=lambda: {"default": 0, "other": 0})
    plans: list[StepPlan] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cache = BlockCache(self.blocks, 4)
        self.scheduler = Scheduler(
            self.cache,
            lambda adapter: self.versions.get(adapter or "", 0),
            max_batch_tokens=self.budget,
            max_running=self.max_running,
            context_length=self.context_length,
            vocabulary=300,
            drafts=self.drafts,
        )

    def add(
        self, prompt, max_tokens=4, *, seed=0, adapter="default", constraint=None, asker=("", ""), **options
    ) -> Asked:
        delivery = options.pop("delivery", "stepwise")
        sampling = SamplingParams(max_tokens=max_tokens, **options)
        request = TokenRequest(tuple(prompt), sampling, adapter, asker=asker, delivery=delivery)
        deltas: list[TokenDelta] = []
        sequence = RunningSequence(request, seed, deltas.append, list(prompt), constraint)
        if isinstance(self.drafts, KnowingDrafts):
            self.drafts.seeds[id(sequence.tokens)] = seed
        self.scheduler.add(sequence)
        return Asked(sequence, deltas)

    def step(self) -> StepPlan | None:
        """Schedule, pretend to compute, and record one pass."""
        plan = self.scheduler.schedule()
        if plan is not None:
            self.plans.append(plan)
            self.compute(plan)
            drawing = [segment for segment in (*plan.prefill, *plan.decode) if segment.draws]
            draws = [
                [
                    Draw(token_at(s.sequence.seed, len(s.sequence.tokens) + ahead), -1.0, ())
                    for ahead in range(1 + len(s.guessed))
                ]
                for s in drawing
            ]
            self.scheduler.postprocess(plan, drawing, draws)
        return plan

    def compute(self, plan: StepPlan) -> None:
        """Compute nothing."""

    def run(self) -> None:
        for _ in range(10_000):
            if self.step() is None:
                return
        raise AssertionError("the scheduler never came to an end")


def cost(plan: StepPlan) -> int:
    """Tokens that a pass computes."""
    return sum(segment.cost for segment in (*plan.prefill, *plan.decode))


def sequences(plan: StepPlan) -> list[RunningSequence]:
    """Sequences of a pass."""
    return [segment.sequence for segment in (*plan.prefill, *plan.decode)]


def alone(prompt, max_tokens, seed) -> list[int]:
    """Tokens that a request gets."""
    return [token_at(seed, len(prompt) + n) for n in range(max_tokens)]
