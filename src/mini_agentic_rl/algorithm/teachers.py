"""Teachers: the log-probabilities that a step's rollouts are compared with, token by token (on-policy distillation;
Agarwal et al. 2024, arXiv:2306.13649; Gu et al. 2024, arXiv:2306.08543).

    LocalTeacher        weights in this process: the bare model, an adapter, another model
    PrivilegedTeacher   the policy itself, with more in its context (SDPO)
    ServerTeacher       a server that returns the log-probabilities of a prompt, as vLLM does
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from ..errors import UserError
from ..gateway import ChatRenderer, ServedPolicy, load_tokenizer
from ..policy import Learner, PolicyError, PolicyModel, Scorer, adapter_folder, load_model
from ..tokens import CompletionRecord, TokenTree, pack
from .batch import TrainingBatch
from .groups import Group, Trajectory
from .losses import Floats, Ints
from .settings import BASE_TEACHER, SELF_TEACHER, GRPOSettings, is_address

if TYPE_CHECKING:
    from httpx import Client

ADAPTER: Final = "teacher"
"""Name that the folder of an adapter gets beside the policy's own."""
API_KEY: Final = "TEACHER_API_KEY"
"""Environment variable with the key of a teacher's server."""

_CONCURRENT = 8
_ATTEMPTS = 4
_BUSY = (408, 425, 429, 500, 502, 503, 504)

Places = Sequence[Mapping[int, float]]
"""For each token of a sequence, log-probabilities by id: of the likeliest tokens at its place, and of itself."""


class Teacher(Protocol):
    """Scores sampled tokens. Runs on the torch thread."""

    def logprobs(self, batch: TrainingBatch) -> Floats:
        """Return the log-probability [S] of each sampled token; at imitated terms any finite number.

        Raises:
            UserError: the teacher does not answer.
        """

    def likeliest(self, batch: TrainingBatch, count: int) -> tuple[Ints | None, npt.NDArray[np.float32]]:
        """Return the `count` most likely tokens [S, K] in each state and their log-probabilities [S, K]; a count of 0
        means the whole vocabulary, without tokens.

        Raises:
            UserError: the teacher does not answer.
        """


class LocalTeacher:
    """A teacher whose weights are in this process. It computes the packed tree that the policy learns from."""

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer

    def logprobs(self, batch: TrainingBatch) -> Floats:
        logprobs_S: Floats = self._scorer.logprobs(batch.packed).double().cpu().numpy()
        return logprobs_S

    def likeliest(self, batch: TrainingBatch, count: int) -> tuple[Ints | None, npt.NDArray[np.float32]]:
        top = self._scorer.likeliest(batch.packed, count)
        return None if top.tokens_SK is None else top.tokens_SK.numpy(), top.logprobs_SK.numpy()


class PrivilegedTeacher:
    """The policy as its own teacher, with a solution and feedback in its context (SDPO; Huebotter et al. 2026,
    arXiv:2601.20802, "Reinforcement learning via self-distillation").

        pi_T(token | state) = pi(token | task, solution and feedback, the rollout so far)

    The weights are those of the policy before the step; the paper takes a moving mean of them. A solution is the text
    of another rollout of the group that earned `teacher_reward` or more; feedback is what the agent, or a hook,
    recorded about the rollout as the annotation `feedback`. Both are put, as text, at the end of the message that the
    rollout began with; the rest of the rollout stays the same token by token. A rollout without either is its own
    teacher, from which nothing is learnt.
    """

    def __init__(self, scorer: Scorer, renderer: ChatRenderer, *, reward: float, context_length: int) -> None:
        """
        Args:
            reward: least reward of a rollout that counts as a solution.
            context_length: tokens of a context, at most; a rollout that would be longer is left as it was.
        """
        self._scorer = scorer
        self._renderer = renderer
        self._reward = reward
        self._context_length = context_length
        self._ending = ending_of_a_message(renderer)

    def logprobs(self, batch: TrainingBatch) -> Floats:
        found_S = batch.packed.behaviour_logprobs_S.astype(np.float64)
        if batch.calls:
            found_S[: batch.sampled_terms] = self._scorer.logprobs(pack([self._tree(batch)])).double().cpu().numpy()
        return found_S

    def likeliest(self, batch: TrainingBatch, count: int) -> tuple[Ints | None, npt.NDArray[np.float32]]:
        if not batch.calls:
            return np.zeros((batch.packed.term_count, 1), np.int64), np.zeros((batch.packed.term_count, 1), np.float32)
        top = self._scorer.likeliest(pack([self._tree(batch)]), count)
        # Imitated terms weigh nothing in the divergence; any finite number will do.
        rest = ((0, batch.packed.term_count - batch.sampled_terms), (0, 0))
        tokens_SK = None if top.tokens_SK is None else np.pad(top.tokens_SK.numpy(), rest)
        return tokens_SK, np.pad(top.logprobs_SK.numpy(), rest)

    def _tree(self, batch: TrainingBatch) -> TokenTree:
        """Return the calls of the batch, in their order, with the teacher's knowledge in their contexts."""
        tree, known = TokenTree(), dict[int, Sequence[int]]()
        for call in batch.calls:
            key = id(call.trajectory)
            if key not in known:
                text = self._text(call.trajectory, call.group)
                known[key] = self._renderer.encode_text(text) if text else ()
            tree.insert(self._informed(call.record, call.trajectory.records[0].prompt_ids, known[key]))
        return tree

    def _informed(
        self, record: CompletionRecord, first: npt.NDArray[np.int64], known: Sequence[int]
    ) -> CompletionRecord:
        """Return a call with the tokens `known` at the end of its rollout's first message, if they fit there."""
        prompt, ending = record.prompt_ids, self._ending
        size = prompt.size + len(known) + record.output_ids.size
        begins = np.array_equal(prompt[: first.size], first) and np.array_equal(
            first[first.size - len(ending) :], ending
        )
        if not known or not begins or size > self._context_length:
            return record
        at = first.size - len(ending)
        return replace(record, prompt_ids=np.concatenate([prompt[:at], np.array(known, np.int64), prompt[at:]]))

    def _text(self, trajectory: Trajectory, group: Group) -> str:
        """Return the teacher's knowledge about a rollout: a solution, and feedback."""
        solutions = (one for one in group.trajectories if one is not trajectory and one.reward >= self._reward)
        solution = next(map(self._said, solutions), "")
        parts = [f"A correct solution is:\n{solution}"] if solution else []
        parts += [f"About an earlier attempt:\n{trajectory.feedback}"] if trajectory.feedback else []
        return "\n\n" + "\n\n".join([*parts, "Now solve the task."]) if parts else ""

    def _said(self, trajectory: Trajectory) -> str:
        """Return the text of a rollout after its first prompt."""
        first = trajectory.records[0].prompt_ids
        whole = max(
            (np.concatenate([record.prompt_ids, record.output_ids]) for record in trajectory.records),
            key=lambda ids: ids.size * bool(np.array_equal(ids[: first.size], first)),
        )
        return self._renderer.decoder(calls=True)(whole[first.size :].tolist()).strip()


def ending_of_a_message(renderer: ChatRenderer) -> list[int]:
    """Return the ids of a prompt after the text of a user's message: the common ending of two prompts."""
    one, other = (renderer.render([{"role": "user", "content": text}], None) for text in ("a", "b"))
    size = next((n for n, (x, y) in enumerate(zip(one[::-1], other[::-1], strict=False)) if x != y), 0)
    return one[len(one) - size :]


class ServerTeacher:
    """A teacher behind HTTP.

    `POST {address}/completions` with token ids as the prompt and `prompt_logprobs: K` answers, in its first choice, a
    list with an entry for each token of the prompt: `{id: {"logprob": …}}` of the K likeliest tokens at its place and
    of the token itself; the first has none. The server must have the policy's tokenizer, and returns log-probabilities
    of temperature 1. Calls of a rollout that continue each other are one request.
    """

    def __init__(self, address: str, model: str, *, timeout: float = 300.0) -> None:
        """
        Args:
            address: up to and with the version, as http://localhost:8000/v1.
            model: the name that the server has for it.
            timeout: seconds of one request.
        """
        self._address = address.rstrip("/")
        self._model = model
        self._timeout = timeout
        self._client: Client | None = None

    def logprobs(self, batch: TrainingBatch) -> Floats:
        found_S = batch.packed.behaviour_logprobs_S.astype(np.float64)
        if batch.calls:
            found_S[: batch.sampled_terms] = [
                place[int(token)]
                for record, places in self._each_call(batch, 0)
                for token, place in zip(_trained_ids(record), places, strict=True)
            ]
        return found_S

    def likeliest(self, batch: TrainingBatch, count: int) -> tuple[Ints | None, npt.NDArray[np.float32]]:
        tokens_SK = np.zeros((batch.packed.term_count, count), np.int64)
        logprobs_SK = np.zeros((batch.packed.term_count, count), np.float32)
        terms = [place for _, places in self._each_call(batch, count) for place in places] if batch.calls else []
        for term, place in enumerate(terms):
            best = sorted(place.items(), key=lambda pair: -pair[1])[:count]
            if len(best) < count:
                raise UserError(
                    f"{self._address} tells {len(best)} log-probabilities for a token, of {count}: start it with "
                    "`--max-logprobs`, or lower `teacher_top_k`",
                    setting="teacher_top_k",
                )
            tokens_SK[term], logprobs_SK[term] = zip(*best, strict=True)
        return tokens_SK, logprobs_SK

    def _each_call(self, batch: TrainingBatch, count: int) -> list[tuple[CompletionRecord, Places]]:
        """Return the trained tokens' places of each call of the batch."""
        records = [call.record for call in batch.calls]
        wholes = [(*record.prompt_ids.tolist(), *record.output_ids.tolist()) for record in records]
        asked = longest(wholes)
        with ThreadPoolExecutor(_CONCURRENT) as pool:
            answers = dict(zip(asked, pool.map(lambda ids: self._ask(ids, count), asked), strict=True))
        by_call: list[tuple[CompletionRecord, Places]] = []
        for record, ids in zip(records, wholes, strict=True):
            covering = next(one for one in asked if one[: len(ids)] == ids)
            places = answers[covering][record.prompt_ids.size : len(ids)]
            kept = [True] * len(places) if record.forced is None else (~record.forced).tolist()
            by_call.append((record, [place for place, keep in zip(places, kept, strict=True) if keep]))
        return by_call

    def _ask(self, ids: Sequence[int], count: int) -> list[dict[int, float]]:
        """Return the places of one sequence; the first one is empty."""
        body = {
            "model": self._model,
            "prompt": list(ids),
            "max_tokens": 1,
            "temperature": 1.0,
            "prompt_logprobs": count,
        }
        answer = self._post("/completions", body)
        try:
            rows = answer["choices"][0]["prompt_logprobs"]
            places = [{int(id_): float(one["logprob"]) for id_, one in (row or {}).items()} for row in rows]
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise UserError(
                f"{self._address} tells no `prompt_logprobs` as vLLM does: {type(error).__name__}: {error}",
                setting="teacher",
            ) from error
        if len(places) != len(ids) or any(id_ not in place for id_, place in zip(ids[1:], places[1:], strict=True)):
            raise UserError(
                f"{self._address} tells log-probabilities of other tokens than the {len(ids)} that it was given",
                setting="teacher",
            )
        return places

    def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Return the answer to one request, repeated while the server is busy or out of reach.

        Raises:
            UserError: there is no answer.
        """
        from httpx import HTTPError

        for attempt in range(1, _ATTEMPTS + 1):
            try:
                response = self._connected().post(self._address + path, json=body)
                if response.status_code < 400:
                    return response.json()
                problem = f"{response.status_code}: {response.text[:200]}"
                if response.status_code not in _BUSY:
                    break
            except (HTTPError, ValueError) as error:
                problem = f"{type(error).__name__}: {error}"
            if attempt < _ATTEMPTS:
                time.sleep(0.25 * 2**attempt)
        raise UserError(f"the teacher {self._address}{path} gave no answer: {problem}", setting="teacher")

    def _connected(self) -> Client:
        from httpx import Client

        if self._client is None:
            key = os.environ.get(API_KEY)
            self._client = Client(timeout=self._timeout, headers={"Authorization": f"Bearer {key}"} if key else {})
        return self._client


def longest(sequences: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return the sequences that no other one continues, each once."""
    kept: list[tuple[int, ...]] = []
    for ids in sorted(set(sequences)):  # one that continues another comes after it, with none between them but such
        if kept and ids[: len(kept[-1])] == kept[-1]:
            kept[-1] = ids
        else:
            kept.append(ids)
    return kept


def _trained_ids(record: CompletionRecord) -> npt.NDArray[np.int64]:
    return record.output_ids if record.forced is None else record.output_ids[~record.forced]


def teacher_adapter(settings: GRPOSettings, *, known: Mapping[str, object]) -> dict[str, Path]:
    """Return the adapter to load beside the policy's as its teacher, by its name; empty without one.

    Args:
        known: the adapters that the policy has already, by name.
    """
    teacher = settings.teacher
    if teacher is None or teacher in (BASE_TEACHER, SELF_TEACHER) or is_address(teacher) or teacher in known:
        return {}
    folder = adapter_folder(teacher)
    return {} if folder is None else {ADAPTER: folder}


def make_teachers(settings: GRPOSettings, served: ServedPolicy, learners: Mapping[str, Learner]) -> dict[str, Teacher]:
    """Return the teacher of each adapter; empty where the settings ask for none.

    Raises:
        PolicyError: the teacher cannot be loaded, or has another tokenizer.
    """
    teacher, model = settings.teacher, served.policy.model
    if teacher is None:
        return {}
    if is_address(teacher):
        return dict.fromkeys(learners, ServerTeacher(teacher, settings.teacher_model or served.name))
    if teacher == SELF_TEACHER:
        if served.server is None:
            raise RuntimeError("the policy is not served")
        renderer = served.server.renderer
        return {
            adapter: PrivilegedTeacher(
                learner.scorer(adapter),
                renderer,
                reward=settings.teacher_reward,
                context_length=model.context_length,
            )
            for adapter, learner in learners.items()
        }
    name = None if teacher == BASE_TEACHER else ADAPTER if ADAPTER in model.versions else teacher
    if name is None or name in model.versions:
        return {adapter: LocalTeacher(learner.scorer(name)) for adapter, learner in learners.items()}
    other = _other_model(teacher, served)
    return {
        adapter: LocalTeacher(
            Scorer(
                other,
                other.adapters[0],
                max_tokens=learner.settings.max_batch_tokens,
                head_rows=learner.settings.head_rows,
            )
        )
        for adapter, learner in learners.items()
    }


def _other_model(teacher: str, served: ServedPolicy) -> PolicyModel:
    """Return another model, in the number format and on the device of the policy's."""
    own, theirs = served.tokenizer, load_tokenizer(teacher)
    if own.get_vocab() != theirs.get_vocab():
        raise PolicyError(
            f"{teacher} has another tokenizer than {served.name}: no token is compared", setting="teacher"
        )
    where = served.policy.model
    model = load_model(teacher, device=str(where.device))
    model.base.to(where.dtype).requires_grad_(False)
    return model
