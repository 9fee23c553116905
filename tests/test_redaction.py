"""Keys and passwords: shown nowhere, and kept in files of one user."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import os
import pkgutil
import stat
import uuid
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mini_agentic_rl
from command_line import invoke
from mini_agentic_rl.commands.config_file import as_yaml, read_config
from mini_agentic_rl.config import Settings
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.files import make_private_file, make_private_folder, write_text
from mini_agentic_rl.gateway import ServerSettings
from mini_agentic_rl.logging import setup_logging
from mini_agentic_rl.redaction import without_secrets, without_secrets_within
from mini_agentic_rl.store import LightningStoreServer, SqlLightningStore
from mini_agentic_rl.store.open import open_store
from mini_agentic_rl.trainer.report import write_report
from mini_agentic_rl.trainer.run_folder import RunFolder
from mini_agentic_rl.types import LLM, ProxyLLM, ResourcesUpdate

KEY = "hunter2-is-secret"


@pytest.mark.parametrize(
    "text",
    [
        f"https://me:{KEY}@host/v1 refused",
        f"postgresql://me:{KEY}@db.host:5432/agl?sslmode=require",
        f"http://host/v1?api_key={KEY}&n=1",
        f"http://host/?X-Amz-Signature={KEY}",
        f"http://{KEY}@host",
        f"Illegal header value b'Bearer {KEY}'",
        f'{{"Authorization": "Bearer {KEY}"}}',
        f"x-api-key: {KEY}",
        f"authorization={KEY}, http://a:{KEY}@b and http://c:{KEY}@d",
    ],
)
def test_a_secret_is_taken_out_and_the_rest_stays(text: str) -> None:
    shown = without_secrets(text)
    assert KEY not in shown
    assert "***" in shown
    assert ("host" in text) == ("host" in shown)
    assert without_secrets(shown) == shown
    assert without_secrets_within({"a": [text, 1]}) == {"a": [shown, 1]}


@pytest.mark.parametrize(
    "text", ["", "an email: me@host.org", "http://host:80/v1?model=x&n=1", "max_tokens=5", "bearer"]
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert without_secrets(text) == text


@given(st.text(st.sampled_from("://?@&=; aby_token\n'\"*"), max_size=300))
def test_any_text_is_redacted_once_for_all(text: str) -> None:
    assert without_secrets(without_secrets(text)) == without_secrets(text)


def test_no_settings_show_a_key_in_their_repr() -> None:
    rooms = (".gateway.settings", ".commands.", ".hello_agents.", ".reward_service.")
    modules = pkgutil.walk_packages(mini_agentic_rl.__path__, "mini_agentic_rl.")
    keys = {
        (kind.__name__, name): field.repr
        for module in modules
        if any(room in module.name for room in rooms)
        for _, kind in inspect.getmembers(import_module(module.name), inspect.isclass)
        if issubclass(kind, Settings)
        for name, field in kind.model_fields.items()
        if name in ("api_key", "api_keys", "password", "token")
    }
    assert len(keys) >= 3
    assert not any(keys.values())


def test_a_resource_shows_neither_its_keys_nor_its_password_and_sends_them() -> None:
    settings = {"max_tokens": 5, "extra_headers": {"X-Api-Key": KEY, "Authorization": KEY}, "api_key": KEY}
    given: dict[str, Any] = {"model": "m", "api_key": KEY, "sampling_parameters": settings}
    given["endpoint"] = f"http://me:{KEY}@host/v1"
    for resource in (LLM(**given), ProxyLLM(**given)):
        assert KEY not in repr(resource) + str(resource)
        assert "'max_tokens': 5" in repr(resource)
        assert given.items() <= resource.model_dump().items()


def test_what_is_wrong_with_a_resource_is_told_without_its_key() -> None:
    with pytest.raises(ValueError, match="model") as raised:
        LLM(model=[], api_key=KEY)
    assert KEY not in str(raised.value)
    update = {"resources_id": "r", "create_time": 0, "update_time": 0, "version": 1}
    with pytest.raises(ValueError, match="endpoint") as raised:
        ResourcesUpdate.model_validate({**update, "resources": {"a": {"resource_type": "proxy_llm", "api_key": KEY}}})
    assert KEY not in str(raised.value)


async def test_the_key_of_a_resource_leaves_the_store_to_who_may_ask_it_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    store = SqlLightningStore(tmp_path / "store.db")
    server = LightningStoreServer(store, port=0, api_key="store key")
    await server.start()
    added = await server.add_resources({"llm": LLM(model="m", api_key=KEY)})
    rollout = await server.start_rollout("task")
    async with httpx.AsyncClient(base_url=f"{server.endpoint}/v1/agl/") as http:
        for path in ("resources", "resources/latest", f"resources/{added.resources_id}", "rollouts", "statistics"):
            assert KEY not in (await http.get(path)).text
        bad = {"llm": {"resource_type": "llm", "api_key": KEY, "model": []}}
        refused = await http.post("resources", json=bad, headers={"authorization": "Bearer store key"})
        assert refused.status_code == 422
        assert KEY not in refused.text
    await server.close()
    for command in (["rollouts", "list"], ["rollouts", "show", rollout.rollout_id], ["workers"]):
        for options in ([], ["--json"]):
            words = [*command, *options, "--store", str(tmp_path / "store.db")]
            shown = await asyncio.to_thread(invoke, *words)
            assert shown.exit_code == 0
            assert KEY not in shown.output
    told = capfd.readouterr()
    assert KEY not in caplog.text + told.out + told.err + repr(added) + str(added)


def test_a_key_is_printed_in_no_configuration(tmp_path: Path) -> None:
    text = as_yaml(ServerSettings(api_key=[KEY]))
    assert KEY not in text
    assert "api_key: []  # keys are not written" in text
    (tmp_path / "a.yaml").write_text(text)
    assert read_config(tmp_path / "a.yaml", ServerSettings)["api_key"] == []


def test_a_run_folder_keeps_no_password_and_says_so_when_it_is_missing(tmp_path: Path) -> None:
    config = {"store": f"postgresql://me:{KEY}@127.0.0.1:1/agl"}
    folder = RunFolder(tmp_path / "run")
    assert folder.begin(config) == "new"
    assert KEY not in folder.config_path.read_text()
    with pytest.raises(UserError, match="give the whole URL again"):
        open_store(folder.read_config()["store"])


@pytest.mark.skipif(os.name != "posix", reason="rights are POSIX's")
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777 - 0o700])
async def test_what_keeps_conversations_is_for_one_user(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        store = SqlLightningStore(tmp_path / "made" / "store.db")
        await store.add_resources({"llm": LLM(model="m", api_key=KEY)})
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "made").iterdir()}
        await store.close()
        folder = RunFolder(tmp_path / "run")
        folder.begin({})
        folder.write_summary({"untrained": {"the tool said no": 1}})
        setup_logging(console=False, files=tmp_path / "logs" / "run.log")
        write_text(tmp_path / "report.html", "said", private=True)
    finally:
        os.umask(before)
        setup_logging("WARNING")
    assert modes == dict.fromkeys(["store.db", "store.db-wal", "store.db-shm"], 0o600)
    for path in (tmp_path / "made", tmp_path / "logs", folder.path, folder.checkpoints_path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    for path in (folder.config_path, folder.summary_path, tmp_path / "report.html", tmp_path / "logs" / "run.log"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.skipif(os.name != "posix", reason="rights are POSIX's")
def test_a_log_file_that_somebody_has_made_keeps_the_readers_it_was_made_for(tmp_path: Path) -> None:
    (tmp_path / "run.log").touch()
    (tmp_path / "run.log").chmod(0o640)
    setup_logging(console=False, files=tmp_path / "run.log")
    setup_logging("WARNING")
    assert stat.S_IMODE((tmp_path / "run.log").stat().st_mode) == 0o640


@pytest.mark.skipif(os.name != "posix", reason="rights are POSIX's")
def test_a_file_that_others_could_read_is_theirs_no_more(tmp_path: Path) -> None:
    file = tmp_path / "old.db"
    file.write_text("kept")
    file.chmod(0o644)
    make_private_file(file)
    assert (stat.S_IMODE(file.stat().st_mode), file.read_text()) == (0o600, "kept")
    before = stat.S_IMODE(tmp_path.stat().st_mode)
    make_private_folder(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == before


@pytest.mark.parametrize(
    "settings",
    [
        {"agent_env": ["OPENAI_API_KEY=KEY"]},
        {"agent_env": ["DATABASE_URL=postgresql://me:KEY@host/db"]},
        {"agent_env": ["CREDS=KEY"]},
        {"agent_env": ['CONFIG={"auth_token": "KEY"}']},
        {"harness": {"agent_env": ["GH_PAT=KEY"]}},
        {"agent_command": "agent --api-key KEY --verbose"},
        {"agent_command": "agent --hf-token='KEY'"},
        {"agent_command": "env OPENAI_API_KEY=KEY agent"},
        {"agent_command": "curl -H 'Authorization: Bearer KEY' host"},
        {"agent_command": "agent KEY"},
        {"test_command": """sh -c 'echo "{\\"api_key\\": \\"KEY\\"}" > keys'"""},
        {"runner_env": {"env_vars": {"ANTHROPIC_API_KEY": "KEY"}}},
        {"runner_env": "https://host/code.zip?token=KEY"},
        {"judge": {"api_key": ["KEY"]}},
    ],
)
def test_a_key_in_the_settings_of_a_run_is_hidden_by_its_value_wherever_the_run_writes(
    settings: dict[str, object], tmp_path: Path
) -> None:
    key = f"ghp_{uuid.uuid4().hex}"
    settings = json.loads(json.dumps(settings).replace("KEY", key).replace("API_" + key, "API_KEY"))
    folder = RunFolder(tmp_path / "run")
    folder.begin({"steps": 3, **settings})
    setup_logging(console=False, files=tmp_path / "run" / "logs" / "run.log")
    logging.getLogger("mini_agentic_rl").warning("it said %s", key)
    setup_logging("WARNING")
    folder.save_answers([{"evaluation": "before", "answer": f"the key is {key}"}], {"before"})
    folder.write_summary({"untrained": {f"the tool said {key}": 1}})
    write_report(
        folder,
        summary={"untrained": {f"the tool said {key}": 1}},
        metrics_rows=[],
        transcripts=[{"messages": [{"role": "tool", "content": f"key: {key}"}]}],
    )
    written = {path.name: path.read_text() for path in folder.path.rglob("*") if path.is_file()}
    assert {"config.json", "run.log", "evaluations.jsonl", "summary.json", "report.html"} <= set(written)
    assert [name for name, text in written.items() if key in text] == []
    assert folder.read_config()["steps"] == 3
    assert RunFolder(tmp_path / "run").begin({"steps": 3, **settings}, resume=True) == "finished"


def test_what_a_run_is_given_beside_keys_stays_readable(tmp_path: Path) -> None:
    given = {"agent_env": ["MODE=fast", "WORKERS=12345678", "PLACE=/data/of/agents", "DEBUG=true"], "max_tokens": 5}
    folder = RunFolder(tmp_path / "run")
    folder.begin(given)
    assert folder.read_config() == given
