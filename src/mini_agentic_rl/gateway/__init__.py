"""The gateway: an OpenAI-compatible endpoint in front of a model, which records every token that it serves.

One chat request, from its arrival to its answer:

1.  It arrives at `MiniLLMServer` (`http/server.py`), at the path of a dialect, plain or below the URL of an attempt:
    `/rollout/{rollout_id}/attempt/{attempt_id}/v1/…`. The path of every request is in `http/app.py`.
2.  It is admitted: API key, rate, concurrency, a pause while the weights are updated (`mini_agentic_rl.http`).
3.  Its dialect turns it into a chat request (`dialects/`: chat completions, responses, Anthropic messages), which is
    checked: `ChatRequest` (`dialects/chat.py`).
4.  Its attempt is looked up (`completion/record.py`), and it is rendered to token ids by the model's chat template
    (`completion/prepare.py`, `render/`), continuing from the ids of earlier calls where the conversation goes on
    (`completion/remember.py`).
5.  A JSON schema or a strict tool becomes a constraint on the tokens (`constraints/`).
6.  It is held to the limits of its attempt (`RolloutBudgets`).
7.  It is sampled (`completion/service.py`) by a `Sampler`: token ids in, token ids out (`mini_agentic_rl.samplers`).
8.  Its tokens are read as they come (`completion/choice.py`): text, thought (`render/decoding.py`) and tool calls
    (`tool_formats/`).
9.  Its answer is recorded: one span with the exact tokens and log-probabilities, in the store before the answer is
    complete at the agent. The next call goes on from its ids; prompts that do not are counted by their reason.
10. It is answered, whole or as server-sent events, in its dialect.

`ServedPolicy` is a policy, and what samples from it, behind this server. `LLMProxy` (`proxy/`) is the same endpoint
over servers of others: it shares all but 4 to 8, and hands the request on instead of sampling.

Everything here is loaded when it is first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
