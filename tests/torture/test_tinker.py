"""The server of the Tinker API: names that leave its folder, and the data of other keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import httpx

from integrations.tinker.test_server import TOKENS, Client

from .conftest import Attack
from .neighbours import served
from .servers import TINKER

NAMES: Final = (
    *("..", "../out", "../../../out", "/tmp/out", "a/b", "weights/../..", "..%2fout", "a\\b", "~", "C:out", "CON"),
    *("", " ", ".hidden", "a\0b", "a\nb", "\ud800", "é", "-", "--help", "$(id)", "a" * 128, "x" * 129, "a" * 10_000),
)


def _post(client: Client, path: str, body: dict[str, Any]) -> None:
    """Post a body, with half surrogates as they are: whether it is taken or refused, the server is not at fault."""
    answer = client.http.post(path, content=json.dumps(body), headers={"Content-Type": "application/json"})
    assert answer.status_code < 500, answer.text[:500]
    message = answer.json()
    if answer.status_code >= 400:
        assert message["detail"]
    elif "request_id" in message:
        result = client.result(message)
        assert result.get("category") != "server", result


def test_names_that_leave_the_folder_of_tinker(attack: Attack, tmp_path: Path) -> None:
    folder = tmp_path / "inside"
    with served(TINKER, str(folder)) as server:
        client = Client(server.url)
        model = client.create()
        for name in NAMES:
            with attack.attempt(f"saving as {name[:30]!r}"):
                for route in ("save_weights", "save_weights_for_sampler"):
                    _post(client, route, {"model_id": model, "path": name, "overwrite": True})
            with attack.attempt(f"reading {name[:30]!r}"):
                paths = [f"tinker://{part}" for part in (f"{model}/weights/{name}", f"{name}/weights/a")]
                for path in (*paths, f"tinker://{model}/{name}/a", name, f"file://{name}"):
                    body = {"model_id": model, "path": path, "tinker_path": path, "model_path": path}
                    for route in ("load_weights", "weights_info", "create_sampling_session"):
                        _post(client, route, {**body, "session_id": client.session, "sampling_session_seq_id": 0})
            with attack.attempt(f"removing {name[:30]!r}"):
                quoted = str(httpx.QueryParams({"a": name.encode("utf-8", "replace").decode()}))[2:]
                for path in (quoted, quoted.replace("%2F", "/")):
                    for run in (model, path):
                        answer = client.http.delete(f"training_runs/{run}/checkpoints/weights/{path}")
                        assert answer.status_code < 500, answer.text
        with attack.attempt("the folder"):
            assert sorted(path.name for path in tmp_path.iterdir()) == ["inside"]
            assert {path.name for path in folder.iterdir()} <= {"runs", ".snapshots", ".lock"}
            assert {path.name for path in (folder / "runs").iterdir()} == {model.replace(":", "_")}


def test_tinker_across_keys(attack: Attack, tmp_path: Path) -> None:
    """All that alice has is as unknown to bob as what never was."""
    with served(TINKER, str(tmp_path), "alice", "bob") as server:
        alice, bob = (Client(server.url, key) for key in ("alice", "bob"))
        for each in (alice, bob):
            opened = each.post("create_session", display_name="the vault", user_metadata={"a": "ochre"})
            each.session = opened["session_id"]
        model, model_of_bob = alice.create(), bob.create()
        alice.loss(model)
        saved = alice.do("save_weights", model, path="kept")["path"]
        sampler = alice.sampler(model)
        promised = alice.post("optim_step", model_id=model, seq_id=alice.next(model))
        alice.result(promised)
        of_alice, of_model = {"session_id": alice.session}, {"model_id": model}
        sampling = {"sampling_session_seq_id": 9, "model_path": saved, "base_model": "tiny"}
        run = f"training_runs/{model}"
        tries: list[tuple[str, str, dict[str, Any]]] = [
            ("POST", "session_heartbeat", of_alice),
            ("POST", "get_info", of_model),
            ("POST", "optim_step", {**of_model, "adam_params": {"learning_rate": 0.1}}),
            ("POST", "save_weights", {**of_model, "path": "kept", "overwrite": True}),
            ("POST", "save_weights_for_sampler", {**of_model, "path": None, "sampling_session_seq_id": 1}),
            ("POST", "load_weights", {**of_model, "path": saved, "optimizer": False}),
            ("POST", "load_weights", {"model_id": model_of_bob, "path": saved, "seq_id": None}),
            ("POST", "create_sampling_session", {**of_alice, **sampling}),
            ("POST", "create_sampling_session", {"session_id": bob.session, **sampling}),
            ("POST", "join_sampling_session", {"sampling_session_id": sampler}),
            ("POST", "asample", {"prompt": {"chunks": [{"tokens": TOKENS}]}, "sampling_session_id": sampler}),
            ("POST", "cancel_future", {"request_id": promised["request_id"]}),
            ("POST", "retrieve_future", {"request_id": promised["request_id"]}),
            ("POST", "weights_info", {"tinker_path": saved}),
            ("POST", "create_model", {**of_alice, "model_seq_id": 0, "base_model": "tiny", "lora_config": {"rank": 2}}),
            ("GET", run, {}),
            ("DELETE", f"{run}/checkpoints/weights/kept", {}),
            ("GET", f"samplers/{sampler}", {}),
            ("POST", f"sessions/{alice.session}/finish", {}),
        ]
        for method, path, body in tries:
            with attack.attempt((method, path)):
                answer = bob.http.request(method, path, json=body if method == "POST" else None)
                assert answer.status_code < 500, answer.text
                message = answer.json()
                result = bob.result(message) if "request_id" in message and answer.status_code == 200 else {}
                text = answer.text + json.dumps(result)
                # an empty object answers the cancelling or ending of something that does not exist
                assert answer.status_code >= 400 or "error" in result or message == {}, text
                assert "ochre" not in text
        with attack.attempt("alice has it all still"):
            assert alice.post("session_heartbeat", session_id=alice.session)["type"] == "session_heartbeat"
            assert alice.post("weights_info", tinker_path=saved)["lora_rank"] == 4
            assert alice.result(promised)["type"] == "optim_step"
            assert alice.sample(sampler)["sequences"]
