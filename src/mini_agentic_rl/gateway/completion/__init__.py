"""One chat request on the gateway that samples: `service.py`, `call.py`, `choice.py`, `record.py`, `remember.py`.

The steps of a request are listed in `mini_agentic_rl.gateway`.
"""
