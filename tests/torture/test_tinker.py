"""The server of the Tinker API: odd values in every field, names that leave its folder, and data of other keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import httpx

from integrations.tinker.test_server import Client

from .conftest import Attack
from .neighbours import served
from .servers import TINKER

JSON: Final = {"Content-Type": "application/json"}
TOKENS: Final = [5, 6, 7, 8, 9, 10]


def _promised(client: Client, answer: httpx.Response) -> dict[str, Any]:
    """Return the result of a request that was taken, or what it was refused with; neither is the server's fault."""
    assert answer.status_code < 500, answer.text[:500]
    told = answer.json()
    if answer.status_code >= 400:
        assert told["detail"]
        return told
    if "request_id" not in told:
        return told
    found = client.result(told)
    assert found.get("category") != "server", found
    return found


def _bodies(client: Client, model: str, sampler: str) -> dict[str, dict[str, Any]]:
    """Give a sound body for each route that takes one."""
    own = {"session_id": client.session}
    path = f"tinker://{model}/weights/kept"
    asked = {
        "num_samples": 1,
        "prompt": {"chunks": [{"tokens": TOKENS}]},
        "sampling_params": {"max_tokens": 2, "seed": 1, "stop": ["a"], "temperature": 1.0, "top_k": 1, "top_p": 0.9},
        "sampling_session_id": sampler,
        "seq_id": None,
        "prompt_logprobs": True,
        "topk_prompt_logprobs": 1,
        "topk_sample_logprobs": 1,
        "target_prompt_logprobs": {"data": [1] * 5, "dtype": "int64", "shape": [5, 1]},
        "prompt_logprobs_last_n": 2,
    }
    return {
        "client/config": {},
        "create_session": {"tags": ["a"], "user_metadata": {"a": "b"}, "display_name": "a"},
        "session_heartbeat": own,
        "get_info": {"model_id": model},
        "optim_step": {
            "model_id": model,
            "adam_params": dict.fromkeys(("learning_rate", "beta1", "beta2", "eps", "weight_decay"), 0.1),
            "optimizer_params": {"type": "adamw"},
        },
        "save_weights": {
            "model_id": model,
            "path": "kept",
            "overwrite": True,
            "ttl_seconds": 9999,
            "user_metadata": {},
        },
        "save_weights_for_sampler": {"model_id": model, "path": None, "sampling_session_seq_id": 1, "kind": "snapshot"},
        "load_weights": {"model_id": model, "path": path, "optimizer": False},
        "create_sampling_session": own | {"sampling_session_seq_id": 9, "model_path": path, "base_model": "tiny"},
        "join_sampling_session": {"sampling_session_id": sampler},
        "asample": asked,
        "cancel_future": {"request_id": "a"},
        "retrieve_future": {"request_id": "a"},
        "weights_info": {"tinker_path": path},
        "create_model": own
        | {
            "model_seq_id": 0,
            "base_model": "tiny",
            "user_metadata": {"a": 1},
            "lora_config": {"rank": 2, "seed": 1, "train_unembed": True, "train_mlp": True, "train_attn": True},
            "optimizer_config": {"type": "adamw"},
        },
    }


def test_names_that_leave_the_folder_of_tinker(attack: Attack, tmp_path: Path) -> None:
    folder = tmp_path / "inside"
    names = [
        *("..", "../out", "../../../out", "/tmp/out", "a/b", "weights/../..", "..%2fout", "a\\b", "~", "C:out", "CON"),
        *(
            "",
            " ",
            ".hidden",
            "a\0b",
            "a\nb",
            "\ud800",
            "é",
            "-",
            "--help",
            "$(id)",
            "a" * 128,
            "x" * 129,
            "a" * 10_000,
        ),
    ]
    with served(TINKER, str(folder)) as server:
        client = Client(server.url)
        model = client.create()
        own = {"session_id": client.session}
        for name in names:
            path = f"tinker://{model}/weights/{name}"
            text = json.dumps(name)
            with attack.attempt(f"saving as {name[:30]!r}"):
                for route in ("save_weights", "save_weights_for_sampler"):
                    body = f'{{"model_id":"{model}","path":{text},"overwrite":true}}'
                    _promised(client, client.http.post(route, content=body, headers=JSON))
            with attack.attempt(f"reading {name[:30]!r}"):
                for odd in (path, f"tinker://{name}/weights/a", f"tinker://{model}/{name}/a", name, f"file://{name}"):
                    told = json.dumps({"model_id": model, "path": odd, "tinker_path": odd, "model_path": odd, **own})
                    for route in ("load_weights", "weights_info", "create_sampling_session"):
                        body = told[:-1] + ',"sampling_session_seq_id":0}'
                        _promised(client, client.http.post(route, content=body, headers=JSON))
            with attack.attempt(f"removing {name[:30]!r}"):
                quoted = httpx.QueryParams({"a": name.encode("utf-8", "replace").decode()}).__str__()[2:]
                for odd in (quoted, quoted.replace("%2F", "/")):
                    for run in (model, odd):
                        answer = client.http.delete(f"training_runs/{run}/checkpoints/weights/{odd}")
                        assert answer.status_code < 500, answer.text
        with attack.attempt("what is there"):
            assert sorted(path.name for path in tmp_path.iterdir()) == ["inside"]
            inside = {path.relative_to(folder).parts[0] for path in folder.iterdir()}
            assert inside <= {"runs", ".snapshots", ".lock"}
            assert {path.name for path in (folder / "runs").iterdir()} == {model.replace(":", "_")}


def test_tinker_across_keys(attack: Attack, tmp_path: Path) -> None:
    """All that alice has is as unknown to bob as what never was."""
    with served(TINKER, str(tmp_path), "alice", "bob") as server:
        alice, bob = (Client(server.url, key) for key in ("alice", "bob"))
        for each in (alice, bob):
            each.session = each.post("create_session", display_name="the vault", user_metadata={"a": "ochre"})[
                "session_id"
            ]
        model, own = alice.create(), bob.create()
        alice.loss(model)
        saved = alice.do("save_weights", model, path="kept")["path"]
        sampler = alice.sampler(model)
        promised = alice.post("optim_step", model_id=model, seq_id=alice.next(model))
        alice.result(promised)
        bodies = _bodies(alice, model, sampler)
        for path in ("create_session", "client/config"):
            del bodies[path]
        for body in bodies.values():
            body.pop("seq_id", None)
        bodies["cancel_future"] = bodies["retrieve_future"] = {"request_id": promised["request_id"]}
        loading = {"model_id": own, "path": saved, "seq_id": None}
        sampling = {"session_id": bob.session, "sampling_session_seq_id": 3, "model_path": saved}
        tries = [("POST", path, body) for path, body in bodies.items()]
        tries += [("POST", "load_weights", loading), ("POST", "create_sampling_session", sampling)]
        run = f"training_runs/{model}"
        tries += [
            (method, path, {})
            for method, path in (
                ("GET", run),
                ("DELETE", f"{run}/checkpoints/weights/kept"),
                ("GET", f"samplers/{sampler}"),
                ("POST", f"sessions/{alice.session}/finish"),
            )
        ]
        for method, path, body in tries:
            with attack.attempt((method, path)):
                given = {} if method in ("GET", "DELETE") else {"json": body}
                answer = bob.http.request(method, path, **given)
                assert answer.status_code < 500, answer.text
                found = bob.result(answer.json()) if "request_id" in answer.json() and answer.status_code == 200 else {}
                told = answer.text + json.dumps(found)
                # an empty object answers the cancelling or ending of something that is not there
                assert answer.status_code >= 400 or "error" in found or answer.json() == {}, told
                assert "ochre" not in told
        with attack.attempt("alice has it all still"):
            assert alice.post("session_heartbeat", session_id=alice.session)["type"] == "session_heartbeat"
            assert alice.post("weights_info", tinker_path=saved)["lora_rank"] == 4
            assert alice.result(promised)["type"] == "optim_step"
            assert alice.sample(sampler)["sequences"]
