"""The choice of a server for each request, retries, failures of servers, and the end of a program with a proxy."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import httpx
import openai
import pytest
from starlette.responses import JSONResponse, Response, StreamingResponse

from mini_agentic_rl.gateway.proxy import llm_proxy, upstreams
from mini_agentic_rl.gateway.proxy.upstreams import DOWN_SECONDS, Upstreams
from mini_agentic_rl.gateway.settings import GatewayLimits
from mini_agentic_rl.semconv import AGL_EXCEPTION

from ..samples import QUESTION, ask_and_leave, openai_client, until
from .fake_upstream import chunk, completion

BODY = {"model": "policy", "messages": QUESTION}


async def _ask(url, **options):
    async with openai_client(url) as client:
        return await client.chat.completions.create(model="policy", messages=QUESTION, **options)


async def _chunks(url):
    async with openai_client(url) as client:
        stream = await client.chat.completions.create(model="policy", messages=QUESTION, stream=True)
        return [each async for each in stream]


def _busy(*statuses, **headers):
    """A script that refuses with these statuses, then answers."""
    left = list(statuses)

    def script(body):
        return JSONResponse({"error": {"message": "not now"}}, left.pop(0), headers) if left else completion()

    return script


async def test_the_calls_of_a_rollout_go_to_one_server_and_move_on_when_it_dies(upstream, proxying, store):
    servers = [upstream(), upstream(), upstream()]
    proxy = await proxying(*({"base_url": server.url} for server in servers))
    rollouts = [await store.start_rollout({"n": n}) for n in range(12)]
    urls = [proxy.as_resource(r.rollout_id, r.attempt.attempt_id).endpoint for r in rollouts]
    for _ in range(3):
        await asyncio.gather(*(_ask(url, user=url) for url in urls))
    homes = {url: {index for index, s in enumerate(servers) for b in s.bodies if b["user"] == url} for url in urls}
    assert all(len(home) == 1 for home in homes.values())
    assert len(set.union(*homes.values())) > 1
    (dead,) = homes[urls[0]]
    servers[dead].stop()
    await asyncio.gather(*(_ask(url, user=url) for url in urls))
    for url in urls:
        asked = [index for index, server in enumerate(servers) if any(b["user"] == url for b in server.bodies)]
        assert asked == [*homes[url]] or dead in homes[url]


def _entries(*urls):
    return [{"model_name": "policy", "base_url": url} for url in urls]


def _ranked(upstreams, rollout_id):
    return upstreams.ranked(upstreams.servers["policy"], rollout_id)


def _first(upstreams, rollout_id):
    return _ranked(upstreams, rollout_id)[0].base_url


def test_rollouts_spread_evenly_and_only_those_of_a_server_that_is_gone_move():
    three = Upstreams(_entries("http://a", "http://b", "http://c"))
    two = Upstreams(_entries("http://a", "http://c"))
    homes, moved = Counter(), Counter()
    for n in range(900):
        before, after = _first(three, f"r{n}"), _first(two, f"r{n}")
        assert before == _first(three, f"r{n}")
        homes[before] += 1
        if before == "http://b":
            moved[after] += 1
        else:
            assert after == before
    assert all(240 < count < 360 for count in homes.values())
    assert Counter(_first(two, None) for _ in range(10)) == {"http://a": 5, "http://c": 5}  # outside of rollouts
    assert min(moved.values()) > 90


def test_a_server_that_could_not_be_reached_is_asked_last_for_a_while():
    now = [0.0]
    replicas = Upstreams(_entries("http://a", "http://b"), clock=lambda: now[0])
    home = _ranked(replicas, "r")[0]
    replicas.mark_down(home)
    assert _ranked(replicas, "r")[1] == home
    assert replicas.is_down(home)
    now[0] = DOWN_SECONDS + 0.1
    assert _ranked(replicas, "r")[0] == home
    replicas.mark_down(home)
    replicas.mark_down(home, 0.0)
    assert _ranked(replicas, "r")[0] == home


@pytest.fixture
def pauses(monkeypatch):
    """Seconds that the proxy let pass before it tried the same server again, in order."""
    seconds = []
    pause = upstreams._pause

    def noted(*arguments):
        seconds.append(pause(*arguments))
        return seconds[-1]

    monkeypatch.setattr(upstreams, "_pause", noted)
    return seconds


async def test_retry_after_is_honoured_and_the_answer_comes_in_the_end(upstream, proxying, pauses):
    server = upstream(_busy(429, **{"Retry-After": "0.4"}))
    proxy = await proxying({"base_url": server.url})
    started = time.monotonic()
    assert (await _ask(proxy.endpoint)).choices[0].message.content == "42"
    assert time.monotonic() - started >= 0.4
    assert pauses == [0.4]
    assert len(server.bodies) == 2


async def test_a_refusal_that_stays_comes_back_with_its_own_status_and_message(upstream, proxying):
    server = upstream(_busy(*[429] * 9, **{"Retry-After": "0"}))
    proxy = await proxying({"base_url": server.url}, num_retries=2)
    answer = httpx.post(f"{proxy.endpoint}/chat/completions", json=BODY)
    assert (answer.status_code, answer.json()["error"]["message"]) == (429, "not now")
    assert answer.headers["retry-after"] == "0"
    assert len(server.bodies) == 3


async def test_a_server_that_is_away_for_now_hands_its_rollouts_to_another_at_once(upstream, proxying, pauses):
    away, there = upstream(_busy(*[503] * 9)), upstream()
    proxy = await proxying({"base_url": away.url}, {"base_url": there.url})
    for _ in range(4):
        assert (await _ask(proxy.endpoint)).choices[0].message.content == "42"
    assert pauses == []
    assert len(away.bodies) == 1


async def test_a_refusal_keeps_its_error_and_names_the_server_unless_it_is_about_the_request(upstream, proxying):
    error = {"message": "no " * 2000, "type": "invalid_request_error", "param": "messages", "code": "too_much"}
    wrong_key = JSONResponse({"error": {"message": "wrong API key"}}, 401)
    answers: list[tuple[Response, str]] = [(JSONResponse({"error": error}, 400), error["message"])]
    answers += [(wrong_key, "SERVER refused a request for 'policy' of the model list with status 401: wrong API key")]
    for page in ("<h1>gone</h1>", '{"detail": "gone"}', ""):
        named = "SERVER refused a request for 'policy' of the model list with status 410"
        answers += [(Response(page, 410), f"{named}: {page}" if page else named)]
    for refusal, message in answers:
        server = upstream(lambda body, refusal=refusal: refusal)
        proxy = await proxying({"base_url": server.url})
        answer = httpx.post(f"{proxy.endpoint}/chat/completions", json=BODY)
        assert answer.status_code == refusal.status_code
        assert answer.json()["error"]["message"] == message.replace("SERVER", server.url)
        assert message != error["message"] or answer.json()["error"] == error


async def test_a_refusal_that_breaks_off_keeps_its_status(upstream, proxying):
    def broken(body):
        async def begun():
            yield b"{"
            raise RuntimeError("broken off")

        return StreamingResponse(begun(), 400)

    proxy = await proxying({"base_url": upstream(broken).url})
    answer = httpx.post(f"{proxy.endpoint}/chat/completions", json=BODY)
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")


async def test_a_silent_server_is_named_after_its_own_timeout_and_not_asked_again(upstream, proxying):
    async def nothing(body):
        await asyncio.sleep(5)

    server = upstream(nothing)
    proxy = await proxying({"base_url": server.url, "timeout": 0.3}, num_retries=3)
    with pytest.raises(openai.InternalServerError, match=rf"{server.url} sent nothing for 0.3 seconds") as error:
        await _ask(proxy.endpoint)
    assert error.value.status_code == 504
    assert len(server.bodies) == 1


async def test_an_answer_that_cannot_be_read_or_a_server_that_is_gone_is_an_error_that_names_it(upstream, proxying):
    for script in (lambda body: Response("hello"), lambda body: JSONResponse([1, 2])):
        server = upstream(script)
        proxy = await proxying({"base_url": server.url})
        answer = httpx.post(f"{proxy.endpoint}/chat/completions", json=BODY)
        assert answer.status_code == 502
        assert server.url in answer.json()["error"]["message"]
    proxy = await proxying({"base_url": "http://127.0.0.1:9/v1"}, num_retries=0)
    with pytest.raises(openai.InternalServerError, match="does not answer for model 'policy'"):
        await _ask(proxy.endpoint)


async def test_a_stream_that_breaks_off_ends_in_an_error_and_leaves_its_record(upstream, proxying, store, rollout):
    server = upstream(lambda body: [chunk("4"), RuntimeError("crash")])
    proxy = await proxying({"base_url": server.url})
    url = proxy.as_resource(rollout.rollout_id, rollout.attempt.attempt_id).endpoint
    with pytest.raises(openai.APIError, match="broke off its answer"):
        await _chunks(url)
    for _ in range(200):  # the record is written while the error is on its way
        if spans := await store.query_spans(rollout.rollout_id):
            break
        await asyncio.sleep(0.02)
    (span,) = spans
    assert span.attributes["gen_ai.response.finish_reasons"] == ["cancelled"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_away_ends_the_upstreams_work(upstream, proxying, store, rollout, stream):
    server = upstream(lambda body: [chunk("4")] * 200, delay=0.02)
    proxy = await proxying({"base_url": server.url})
    url = proxy.as_resource(rollout.rollout_id, rollout.attempt.attempt_id).endpoint
    await asyncio.to_thread(ask_and_leave, url, BODY | {"stream": stream}, begun=lambda: server.bodies)
    until(lambda: server.broken_off == 1 and proxy.admission.active == 0)


async def test_a_field_of_ours_stays_out_of_the_way_of_a_server_that_need_not_know_it(upstream, proxying, rollout):
    server = upstream()
    proxy = await proxying({"base_url": server.url, "api_key": "theirs"})
    url = proxy.as_resource(rollout.rollout_id, rollout.attempt.attempt_id).endpoint
    await _ask(url, extra_body={"return_token_ids": True, "top_k": 5})
    (body,) = server.bodies
    assert body == {"model": "policy", "messages": QUESTION, "top_k": 5}
    assert server.headers[0]["authorization"] == "Bearer theirs"


async def test_a_rollout_that_used_up_its_tokens_is_stopped_and_marked(upstream, proxying, store, rollout):
    server = upstream(
        lambda body: [chunk("4"), chunk("2", finish="stop"), chunk(usage=completion()["usage"]) | {"choices": []}]
    )
    proxy = await proxying({"base_url": server.url}, limits=GatewayLimits(max_rollout_tokens=15))
    url = proxy.as_resource(rollout.rollout_id, rollout.attempt.attempt_id).endpoint
    for _ in range(2):
        chunks = await _chunks(url)
        assert [each.usage for each in chunks] == [None, None]
    with pytest.raises(openai.PermissionDeniedError, match="used up its tokens"):
        await _chunks(url)
    assert all(body["stream_options"] == {"include_usage": True} for body in server.bodies)
    assert len(server.bodies) == 2
    assert len(await store.query_spans(rollout.rollout_id, name=AGL_EXCEPTION)) == 1


async def test_a_proxy_that_serves_for_ever_gives_answers_its_seconds_and_reports_an_end_by_itself(
    proxying, monkeypatch
):
    proxy, seconds = await proxying({"base_url": "http://127.0.0.1:9/v1"}), []

    async def stop(timeout):
        seconds.append(timeout)

    def asked_to_stop(asked):
        async def until_signal(runs, stop):
            assert runs()
            await stop()
            return asked

        return until_signal

    with monkeypatch.context() as patch:
        patch.setattr(proxy, "stop", stop)
        patch.setattr(llm_proxy, "serve_until_signal", asked_to_stop(True))
        await proxy.run_forever(7.0)
        patch.setattr(llm_proxy, "serve_until_signal", asked_to_stop(False))
        with pytest.raises(RuntimeError, match="ended unexpectedly"):
            await proxy.run_forever()
    assert seconds == [7.0, 30.0]


async def test_prometheus_is_told_of_the_servers_and_of_the_tokens_that_they_tell(upstream, proxying):
    server = upstream()
    proxy = await proxying({"base_url": server.url}, {"base_url": "http://127.0.0.1:9/v1"})
    for _ in range(2):
        await _ask(proxy.endpoint)
    text = httpx.get(f"{proxy.endpoint.removesuffix('/v1')}/metrics").text
    assert 'gateway_tokens_total{kind="prompt"} 14.0' in text
    assert f'upstream_tries_total{{outcome="answered",server="{server.url}"}} 2.0' in text
    assert f'upstream_up{{server="{server.url}"}} 1.0' in text
    assert 'upstream_up{server="http://127.0.0.1:9/v1"} 0.0' in text
