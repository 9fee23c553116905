"""The gateway: an OpenAI-compatible endpoint in front of a model, which records every token that it serves.

The steps of one chat request:

1.  Authenticate: `MiniLLMServer` (`http/server.py`) receives it, and the admission (`mini_agentic_rl.http`) checks API
    key, rate, concurrency and a pause while the weights are updated. `http/app.py` reads the attempt from the URL
    `/rollout/{rollout_id}/attempt/{attempt_id}/v1/…`.
2.  Parse: the dialect of the path (`dialects/`: chat completions, responses, Anthropic messages) translates it to a
    chat request, which `ChatRequest` (`dialects/chat.py`) validates.
3.  Render: `completion/service.py` renders it to token ids with the model's chat template (`render/`). A conversation
    continues from the ids of earlier calls (`completion/remember.py`). A JSON schema or a strict tool becomes a
    constraint on the tokens (`constraints/`).
4.  Limit: the budget of the attempt is charged (`RolloutAttempts` in `completion/record.py`).
5.  Sample: `completion/call.py` samples it from a `Sampler` (`mini_agentic_rl.samplers`), token ids in and out, and
    reads the tokens as text, thought (`render/decoding.py`) and tool calls (`tool_formats/`).
6.  Record: one span with the exact tokens and log-probabilities is stored before the answer is complete.
7.  Answer: whole or as server-sent events, in the dialect of the request.

`ServedPolicy` is a policy with its sampler behind this server. `LLMProxy` (`proxy/`) is the same endpoint in front of
other servers: it sends the request on instead of steps 3 and 5.

All names are imported on first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
