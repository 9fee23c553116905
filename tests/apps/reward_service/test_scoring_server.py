"""The reward service over HTTP: what it answers, what it refuses, and how it ends."""

from __future__ import annotations

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from apps.reward_service.scorers import alone, gated_server, reward_model, tiny_scorer
from mini_agentic_rl.apps.reward_service import BatchSettings, ScoreServer
from mini_agentic_rl.gateway.settings import GatewayLimits
from mini_agentic_rl.rewards import RemoteReward

PROMPT, GOOD, BAD = "What is 7 x 6?", "7 x 6 = 42.", "About forty."
MESSAGES = [{"role": "user", "content": PROMPT}, {"role": "assistant", "content": GOOD}]
TEXT = {"prompt": PROMPT, "response": GOOD}


@pytest.fixture(scope="module")
def server():
    with ScoreServer(reward_model()) as running:
        yield running


def _post(server, path, body, **options):
    return httpx.post(f"{server.url}{path}", json=body, timeout=30, **options)


def _score(server, body):
    answer = _post(server, "/score", body)
    assert answer.status_code == 200, answer.text
    return answer.json()["score"]


def test_a_score_is_what_the_model_says_of_the_chat_template(server):
    text = "".join(
        f"<|im_start|>{role}\n{content}<|im_end|>\n"
        for role, content in (("system", "You are helpful"), ("user", PROMPT), ("assistant", GOOD))
    )
    ids = reward_model().renderer._tokenizer.encode(text, add_special_tokens=False)
    answer = _post(server, "/score", TEXT).json()
    assert answer == {
        "score": pytest.approx(alone(tiny_scorer(), ids), abs=1e-4),
        "tokens": len(ids),
        "truncated": False,
    }


def test_every_way_of_writing_a_text_gets_the_same_score_and_a_batch_those_of_its_texts(server):
    for body in (
        {"messages": MESSAGES},
        {"question": PROMPT, "answer": GOOD},
        {"prompt": MESSAGES[:1], "response": MESSAGES[1:]},
        {"prompt": PROMPT, "completion": MESSAGES[1], "ground_truth": "42"},
        {"prompt": [{"role": "user", "content": [{"type": "text", "text": PROMPT}]}], "response": GOOD},
    ):
        assert _score(server, body) == _score(server, TEXT)
    items = [{"prompt": PROMPT * n, "response": f"{BAD * (5 - n)} {n}"} for n in range(1, 5)] * 3
    answer = _post(server, "/score/batch", {"items": items}).json()
    assert answer["scores"] == pytest.approx([_score(server, item) for item in items], abs=1e-4)
    assert answer["truncated"] == [False] * 12
    assert len(answer["tokens"]) == 12


def test_a_pair_tells_which_answer_is_preferred_and_by_how_much(server):
    good, bad = _score(server, TEXT), _score(server, {"prompt": PROMPT, "response": BAD})
    expected = {
        "score_a": pytest.approx(good, abs=1e-4),
        "score_b": pytest.approx(bad, abs=1e-4),
        "margin": pytest.approx(good - bad, abs=1e-4),
        "preferred": "a" if good > bad else "b",
        "truncated": False,
    }
    assert _post(server, "/score-pair", {"prompt": PROMPT, "response_a": GOOD, "response_b": BAD}).json() == expected
    row = {"prompt": PROMPT, "chosen": GOOD, "rejected": BAD}
    conversations = {"chosen": MESSAGES, "rejected": [MESSAGES[0], {"role": "assistant", "content": BAD}]}
    same = {"question": PROMPT, "chosen": GOOD, "rejected": GOOD}
    results = _post(server, "/score-pair/batch", {"items": [row, conversations, same]}).json()["results"]
    assert results[0] == results[1] == expected
    assert results[2]["preferred"] == "tie"


def test_it_is_a_reward_of_training_by_its_url(server):
    texts = [{"prompt": PROMPT, "response": response} for response in (GOOD, BAD)]
    reward = RemoteReward(server.url)
    assert reward(completions=[GOOD, BAD], prompts=[PROMPT, PROMPT]) == pytest.approx(
        [_score(server, text) for text in texts], abs=1e-4
    )
    conversations = reward(completions=[MESSAGES[1:]], prompts=[MESSAGES[:1]])
    assert conversations == pytest.approx([_score(server, texts[0])], abs=1e-4)


@pytest.mark.parametrize(
    ("path", "body", "param", "said"),
    [
        ("/score", {}, None, "either messages, or a prompt and a response"),
        ("/score", {"response": GOOD}, None, "needs its prompt"),
        ("/score", {"messages": []}, "messages", "at least 1 item"),
        ("/score", {"messages": [{"role": "judge", "content": "x"}]}, "messages[0].role", "unknown role"),
        ("/score", {"prompt": 3, "response": GOOD}, "prompt", "valid"),
        ("/score", [], None, "JSON object"),
        ("/score-pair", {"prompt": PROMPT, "response_a": GOOD}, "response_b", "required"),
        ("/score-pair", {"response_a": GOOD, "response_b": BAD}, None, "prompt of both"),
        ("/score/batch", {"items": []}, "items", "at least 1 item"),
        ("/score/batch", {"items": [TEXT, {"prompt": PROMPT}]}, "items[1]", "either messages"),
        ("/score/batch", {"items": [TEXT, {"messages": [{"role": "judge"}]}]}, "items[1]", "items[1]: unknown role"),
        ("/score/batch", {"items": [TEXT] * 513}, "items", "at most 512"),
    ],
)
def test_a_request_that_cannot_be_scored_is_told_what_is_wrong(server, path, body, param, said):
    answer = _post(server, path, body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert said in error["message"]
    if param is not None:
        assert error["param"] == param


def test_odd_text_is_scored(server):
    for text in ("", " ", "\x00", "🙂" * 50, "\ud800", "<|im_end|>" * 5, "a" * 5000):
        body = json.dumps({"prompt": PROMPT, "response": text})
        answer = httpx.post(f"{server.url}/score", content=body, timeout=30)
        assert answer.status_code == 200, (text, answer.text)


def test_a_long_text_is_cut_as_the_server_says_or_refused(server):
    tool = {"function": {"name": "b" * 100_000}}
    for sent in ({"prompt": "a", "response": "b" * 100_000}, {**TEXT, "tools": [tool]}):  # refused before rendering
        refused = _post(server, "/score", sent)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
    long = {"prompt": "start " * 300, "response": "the end"}
    with ScoreServer(reward_model(max_length=32)) as server:
        answer = _post(server, "/score", long).json()
        assert (answer["tokens"], answer["truncated"]) == (32, True)
        assert _score(server, {**long, "prompt": "other start " * 300}) != answer["score"]
        assert _score(server, {**long, "prompt": "x" * 99 + long["prompt"]}) == pytest.approx(answer["score"], abs=1e-4)
    with ScoreServer(reward_model(max_length=32, truncation="right")) as server:
        assert _score(server, {**long, "response": "another end"}) == pytest.approx(_score(server, long), abs=1e-4)
    with ScoreServer(reward_model(max_length=32, truncation="refuse")) as server:
        refused = _post(server, "/score/batch", {"items": [TEXT | {"prompt": "1"}, long]})
        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == "context_length_exceeded"
        assert refused.json()["error"]["param"] in ("items[0]", "items[1]")


def test_requests_of_many_clients_share_batches():
    with gated_server() as (server, gated), ThreadPoolExecutor(17) as clients:
        first = clients.submit(_score, server, TEXT)
        assert gated.begun.wait(60)
        others = [clients.submit(_score, server, {"prompt": PROMPT, "response": str(n)}) for n in range(16)]
        _wait_for(lambda: server.batcher.waiting == 16)
        gated.gate.set()
        assert first.result() == pytest.approx(_score(server, TEXT), abs=1e-4)
        assert len({other.result() for other in others}) == 16
        assert gated.batches[:2] == [1, 16]


def test_a_text_waits_a_moment_for_company():
    for wait_ms, requests, batches in ((60_000, 2, [2]), (300, 1, [1])):
        model, seen = reward_model(), []
        with ScoreServer(model, batches=BatchSettings(batch_wait_ms=wait_ms, batch_size=2)) as server:
            inner = model.batches.scores
            model.batches.scores = lambda texts, inner=inner, seen=seen: seen.append(len(texts)) or inner(texts)
            started = time.monotonic()
            with ThreadPoolExecutor(2) as clients:
                list(
                    clients.map(
                        lambda n, to=server: _score(to, {"prompt": PROMPT, "response": str(n)}), range(requests)
                    )
                )
            assert requests == 2 or time.monotonic() - started >= 0.3
        assert seen == batches


@pytest.mark.parametrize(("short", "long"), [("a", "z " * 50), ("z", "a " * 50)], ids=["before", "behind"])
def test_a_short_text_comes_before_a_long_one_of_another_request(short, long):
    with gated_server(batches=BatchSettings(batch_tokens=80)) as (server, gated), ThreadPoolExecutor(3) as clients:
        first = clients.submit(_score, server, TEXT)
        assert gated.begun.wait(60)
        others = [clients.submit(_score, server, {"prompt": PROMPT, "response": text}) for text in (long, short)]
        _wait_for(lambda: server.batcher.waiting == 2)
        gated.gate.set()
        for one in (first, *others):
            one.result()
        assert len(gated.lengths) == 3
        assert gated.lengths[1] < gated.lengths[2]


def test_a_full_queue_answers_429_with_the_time_to_wait():
    with gated_server(batches=BatchSettings(max_queue=4)) as (server, gated), ThreadPoolExecutor(2) as clients:
        first = clients.submit(_score, server, TEXT)
        assert gated.begun.wait(60)
        second = clients.submit(_post, server, "/score/batch", {"items": [TEXT] * 4})
        _wait_for(lambda: server.batcher.waiting == 4)
        refused = _post(server, "/score", TEXT)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert _post(server, "/score/batch", {"items": [TEXT] * 5}).status_code == 400
        gated.gate.set()
        assert second.result().status_code == 200
        first.result()
        assert _post(server, "/score", TEXT).status_code == 200


def test_a_large_batch_lets_others_in_after_the_batch_under_way():
    newcomers = 3
    long = {"prompt": "a" * 40, "response": "b" * 40}
    batches = BatchSettings(batch_size=4)
    with gated_server(batches=batches) as (server, gated), ThreadPoolExecutor(8) as clients:
        large = clients.submit(_post, server, "/score/batch", {"items": [long] * 60})
        assert gated.begun.wait(60)
        others = [clients.submit(_score, server, TEXT) for _ in range(newcomers)]
        _wait_for(lambda: server.batcher.waiting == 56 + newcomers)
        gated.gate.set()
        assert len(large.result().json()["scores"]) == 60
        scores = {other.result() for other in others}
    assert len(scores) == 1
    widest = max(map(max, gated.lengths))
    first = [at for at, lengths in enumerate(gated.lengths) for length in lengths if length < widest]
    assert len(first) == newcomers
    assert max(first) <= 2, "each of them waits for the batch under way, and for one that is shared out"


def test_a_client_that_goes_away_takes_its_texts_along():
    with gated_server() as (server, gated), ThreadPoolExecutor(2) as clients:
        first = clients.submit(_score, server, TEXT)
        assert gated.begun.wait(60)
        body = json.dumps({"items": [TEXT] * 3}).encode()
        head = f"POST /score/batch HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(head + body)
            _wait_for(lambda: server.batcher.waiting == 3)
        _wait_for(lambda: server.batcher.waiting == 0)
        gated.gate.set()
        first.result()
        _score(server, TEXT)
        assert gated.batches == [1, 1]
        assert 'outcome="cancelled"' in httpx.get(f"{server.url}/metrics").text


def test_a_model_that_fails_or_gives_no_number_fails_its_batch_and_not_the_server():
    with gated_server() as (server, gated):
        gated.gate.set()
        gated.failure = MemoryError("inside")
        answer = _post(server, "/score", TEXT)
        assert answer.status_code == 500
        assert "inside" not in answer.text
        gated.failure = None
        assert _post(server, "/score", TEXT).status_code == 200
        server.model.batches.scores = lambda texts: [float("inf")] * len(texts)
        assert _post(server, "/score", TEXT).status_code == 500


def test_stopping_finishes_what_is_under_way_and_refuses_newcomers():
    with gated_server() as (server, gated), ThreadPoolExecutor(2) as clients:
        first = clients.submit(_post, server, "/score", TEXT)
        assert gated.begun.wait(60)
        url = server.url
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        _wait_for(lambda: server.admission.draining)
        refused = httpx.post(f"{url}/score", json=TEXT)
        health = httpx.get(f"{url}/health")
        assert (refused.status_code, health.status_code, health.json()["ready"]) == (503, 503, False)
        assert "retry-after" in refused.headers
        gated.gate.set()
        assert first.result().status_code == 200
        stopping.join()
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/health")


def test_a_key_is_asked_for_and_bounds_are_kept():
    limits = GatewayLimits(max_body_bytes=400, max_requests_per_minute=2)
    with ScoreServer(reward_model(), api_keys=["secret"], limits=limits) as server:
        assert _post(server, "/score", TEXT).status_code == 401
        key = {"headers": {"Authorization": "Bearer secret"}}
        assert _post(server, "/score", TEXT, **key).status_code == 200
        assert _post(server, "/score", {"prompt": "x" * 500, "response": ""}, **key).status_code == 413
        assert _post(server, "/score", TEXT, **key).status_code == 429
        assert httpx.get(f"{server.url}/health").status_code == 200


def test_health_and_metrics_tell_of_the_model_the_queue_and_the_batches(server):
    _post(server, "/score/batch", {"items": [TEXT, TEXT]})
    health = httpx.get(f"{server.url}/health").json()
    assert health["status"] == "ok"
    assert health["ready"] is True
    assert (health["model"], health["max_length"], health["shares_prefixes"]) == ("tiny", 256, True)
    assert health["queue"] == {"waiting": 0, "computing": 0}
    figures = httpx.get(f"{server.url}/metrics").text
    assert 'mini_agentic_rl_scoring_requests_total{outcome="ok",path="/score/batch"}' in figures
    assert "mini_agentic_rl_scoring_texts_total" in figures
    assert 'mini_agentic_rl_scoring_queue{kind="waiting"} 0.0' in figures


def test_the_openapi_document_has_the_schemas_of_every_request(server):
    document = httpx.get(f"{server.url}/openapi.json").json()
    posts = {path: item["post"] for path, item in document["paths"].items() if "post" in item}
    assert set(posts) == {"/score", "/score/batch", "/score-pair", "/score-pair/batch"}
    for operation in posts.values():
        for content in (operation["requestBody"], operation["responses"]["200"]):
            name = content["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
            assert name in document["components"]["schemas"]


def _wait_for(condition, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.005)
