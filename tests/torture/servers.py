"""The servers, each in a process of its own, as sources for `served`, and requests that each of them takes."""

from __future__ import annotations

from typing import Any, Final

_TAIL: Final = """
print(url, flush=True)
sys.stdin.read()
"""

GATEWAY: Final = (
    """
import sys
sys.path.insert(0, "tests")
from gateway.scripted import ScriptedSampler
from gateway.small_tokenizer import CHATML_TOOLS, small_tokenizer
from mini_agentic_rl.gateway.http.server import MiniLLMServer
from mini_agentic_rl.gateway.settings import GatewayLimits
from mini_agentic_rl.store import InMemoryLightningStore
tokenizer = small_tokenizer(CHATML_TOOLS)
sampler = ScriptedSampler(tokenizer, ["ok"], context_length=int(sys.argv[1]) if len(sys.argv) > 1 else 32768)
limits = GatewayLimits.model_validate_json(sys.argv[2] if len(sys.argv) > 2 else "{}")
server = MiniLLMServer(sampler, tokenizer, model_name="tiny", store=InMemoryLightningStore(), limits=limits).start()
url = server.root
"""
    + _TAIL
)
"""A gateway whose model says "ok" at once; its arguments are the context's length in tokens, and limits as JSON."""

SESSIONS: Final = (
    """
import sys
sys.path.insert(0, "tests")
from gateway.scripted import ScriptedSampler
from gateway.small_tokenizer import CHATML_TOOLS, small_tokenizer
from mini_agentic_rl.gateway.http.server import MiniLLMServer
from mini_agentic_rl.gateway import SessionSettings
from mini_agentic_rl.store import SqlLightningStore
tokenizer = small_tokenizer(CHATML_TOOLS)
backend = ScriptedSampler(tokenizer, ["ok"], context_length=32768)
server = MiniLLMServer(backend, tokenizer, model_name="tiny", store=SqlLightningStore(sys.argv[1]),
                       api_keys=["alice", "bob"], sessions=SessionSettings()).start()
url = server.root
"""
    + _TAIL
)
"""A gateway that keeps sessions of two keys, alice and bob; its argument is the file of its store."""

STORE: Final = (
    """
import asyncio, sys
from mini_agentic_rl.store import InMemoryLightningStore, LightningStoreServer
server = LightningStoreServer(InMemoryLightningStore(), port=0)
asyncio.run(server.start())
url = server.endpoint
"""
    + _TAIL
)

SCORES: Final = (
    """
import sys
sys.path.insert(0, "tests")
from mini_agentic_rl.apps.reward_service import ScoreServer
from apps.reward_service.scorers import reward_model
server = ScoreServer(reward_model()).start()
url = server.root
"""
    + _TAIL
)

PROXY: Final = (
    """
import asyncio, sys
from mini_agentic_rl.gateway import LLMProxy
upstream = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:9/v1"
proxy = LLMProxy(model_list=[{"model_name": "tiny", "base_url": upstream, "api_key": "paid"}], num_retries=0)
asyncio.run(proxy.start())
url = proxy.endpoint.removesuffix("/v1")
"""
    + _TAIL
)

RECORDING_PROXY: Final = (
    """
import asyncio, sys
from mini_agentic_rl.gateway import LLMProxy
from mini_agentic_rl.store import InMemoryLightningStore
store = InMemoryLightningStore()
rollout = asyncio.run(store.start_rollout({}))
proxy = LLMProxy(model_list=[{"model_name": "tiny", "base_url": sys.argv[1]}], store=store, num_retries=0)
asyncio.run(proxy.start())
url = f'{proxy.endpoint.removesuffix("/v1")}/rollout/{rollout.rollout_id}/attempt/{rollout.attempt.attempt_id}'
"""
    + _TAIL
)
"""A proxy with a store and one attempt, whose own URL it prints; its argument is the upstream."""

TINKER: Final = (
    """
import sys, tempfile
sys.path.insert(0, "tests")
from pathlib import Path
from mini_agentic_rl.http import RequestLimits
from mini_agentic_rl.integrations.tinker import ClientSettings, TinkerServer
from tiny import tiny_model, tiny_tokenizer
tokenizer = tiny_tokenizer()
folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
server = TinkerServer.load(tiny_model(len(tokenizer)), folder, tokenizer=tokenizer, names=["tiny"],
                           load={"dtype": "float32"}, api_keys=sys.argv[2:],
                           limits=RequestLimits(max_body_bytes=64 * 2**20),
                           clients=ClientSettings(retrieve_seconds=5, max_trained_adapters=32, gap_seconds=0.5)).start()
url = server.root
"""
    + _TAIL
)
"""A server of the Tinker API; its arguments are its folder, and keys."""

UPSTREAM: Final = """
import json, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
message = {"role": "assistant", "content": "ok"}
answer = {"id": "c", "model": "m", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(f"http://127.0.0.1:{server.server_port}/v1", flush=True)
sys.stdin.read()
"""
"""A server of others that says "ok" to anything."""

CHAT: Final[dict[str, Any]] = {"model": "tiny", "messages": [{"role": "user", "content": "12+30?"}]}
