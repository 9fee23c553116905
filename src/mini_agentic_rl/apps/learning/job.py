"""`learn` in its process: new weights from the sessions of a server in use, published to it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

from ...files import one_writer
from ...gateway import load_tokenizer
from ...metrics import JsonlLogger, counted
from ...policy import DEFAULT_ADAPTER, LoraSettings, Policy
from ...rewards import RelativeJudge
from ...store import open_store
from .book import SessionBook
from .judging import EndedSessions
from .learner import UseLearner
from .settings import LearnSettings, use_loop
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
