"""`learn` in its process: judge ended sessions, learn from judged ones, and publish the weights to the server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any, Final

from ...files import one_writer
from ...gateway import load_tokenizer
from ...metrics import JsonlLogger, counted
from ...policy import DEFAULT_ADAPTER, LoraSettings, Policy
from ...rewards import JudgementError, RelativeJudge
from ...store import open_store
from .book import Judgement, SessionBook
from .command import LearnSettings, use_loop
from .learner import UseLearner
from .record import SessionError, SessionRecord, read_record
from .routes import transcript
from .use import UseFolder

logger = logging.getLogger(__name__)


def learn_job(settings: LearnSettings) -> dict[str, Any]:
    """Learn from the sessions of a folder until interrupted, or with `once` while there are enough; return a summary.

    Raises:
        UserError: there is no such folder, another learner writes there, or the model cannot be loaded.
    """
    folder = UseFolder(settings.folder)
    serving = folder.read_serving()
    with one_writer(folder.path / "versions", setting="folder"):
        published = folder.published()
        policy = Policy.load(
            serving["model"],
            adapter=serving["adapter"] if published is None else published.folder / "adapter",
            lora=LoraSettings(),
        )
        try:
            return asyncio.run(_learn(settings, folder, serving, policy))
        finally:
            policy.close()


async def _learn(settings: LearnSettings, folder: UseFolder, serving: dict[str, Any], policy: Policy) -> dict[str, Any]:
    store = open_store(serving["store"], create=False)
    ended = None
    if settings.judge_model is not None:
        judge = RelativeJudge(settings.judge_rubric, model=settings.judge_model, base_url=settings.judge_base_url)
        ended = EndedSessions(SessionBook(store), judge, settings.use.group_judged)
    steps = sessions = 0
    with contextlib.closing(JsonlLogger(folder.metrics_path)) as metrics:
        learner = UseLearner(
            policy,
            store,
            folder,
            (serving["name"], DEFAULT_ADAPTER),
            settings=settings.use,
            loop=use_loop(**settings.loop.model_dump(exclude_unset=True)),
            learner=settings.learner,
            metrics=metrics,
            tokenizer=load_tokenizer(serving["model"], adapter=serving["adapter"]),
        )
        try:
            await learner.resume()
            while True:
                all_seen = ended is None or await ended.look()
                if ended is not None and (count := await ended.judged()):
                    logger.info("%d sessions were judged", count)
                metrics_of_step = await learner.turn()
                if metrics_of_step is not None:
                    taken = counted(int(metrics_of_step["sessions"]), "session")
                    if metrics_of_step["lessons/with_signal"] == 0:
                        logger.info("%s taught nothing: every reward was what was expected", taken)
                        continue
                    steps, sessions = steps + 1, sessions + int(metrics_of_step["sessions"])
                    logger.info("step %d: %s, now version %d", steps, taken, metrics_of_step["version"])
                elif settings.once:
                    if all_seen:
                        break
                else:
                    await asyncio.sleep(settings.poll_seconds)
        finally:
            await store.close()
    return {"steps": steps, "sessions": sessions, "version": policy.version, "output_dir": str(folder.path)}


# Judging: ended sessions without a reward are scored by a model in groups of one key.

_PAGE: Final = 256
_MOST_REMEMBERED: Final = 65_536
"""Sessions that are remembered until their group is complete; beyond this number all are forgotten and read again."""
_PAGES: Final = 8
"""Pages of one look; the next look continues where this one ended."""


class EndedSessions:
    """Ended sessions without a reward, read in bounded numbers.

    Args:
        book: the sessions.
        judge: scores sessions with the same key against each other.
        group_size: sessions per group.
    """

    def __init__(self, book: SessionBook, judge: RelativeJudge, group_size: int) -> None:
        self._book = book
        self._judge = judge
        self._group_size = group_size
        self._offset = 0
        self._waiting: dict[tuple[str, str], dict[str, SessionRecord]] = {}

    async def look(self) -> bool:
        """Note ended sessions: the newest, then further pages from where the last look stopped. Return True at the end
        of all open sessions."""
        if sum(map(len, self._waiting.values())) > _MOST_REMEMBERED:
            self._waiting.clear()
        await self._look_at(0)
        for _ in range(_PAGES - 1):
            if await self._look_at(self._offset):
                self._offset = 0
                return True
            self._offset += _PAGE
        return False

    async def judged(self) -> int:
        """Score the complete groups and return the number of scored sessions. Sessions without a call are dropped. If
        the judge fails, the sessions are scored at a later call."""
        judged = 0
        for (owner, key), records in list(self._waiting.items()):
            while len(records) >= self._group_size:
                group = list(records.values())[: self._group_size]
                texts = [transcript(await self._book.last_call(record)) for record in group]
                for record, text in zip(group, texts, strict=True):
                    if not text or all(texts):
                        del records[record.rollout_id]
                if all(texts):
                    judged += await self._scored(owner, group, texts)
            if not records:
                del self._waiting[owner, key]
        return judged

    async def _look_at(self, offset: int) -> bool:
        """Note the ended sessions of a page; return True if it is the last."""
        page = await self._book.store.query_rollouts(
            status_in=["running"],
            sort_order="desc",
            limit=_PAGE,
            offset=offset,  # before its first call it is not
        )
        for rollout in page:
            record = read_record(rollout)
            if record is not None and record.status == "ended":
                self._waiting.setdefault((record.owner, record.key), {})[record.rollout_id] = record
        return len(page) < _PAGE

    async def _scored(self, owner: str, group: list[SessionRecord], texts: list[str]) -> int:
        from openai import OpenAIError

        try:
            scores = await asyncio.to_thread(self._judge.score, texts)
            scored = [Judgement(record.session_id, score) for record, score in zip(group, scores, strict=True)]
            await self._book.compare(owner, scored)
        except (OpenAIError, JudgementError, SessionError) as error:
            logger.warning("%d sessions were not judged: %s", len(group), error)
            return 0
        return len(group)
