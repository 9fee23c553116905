"""One chat request on the gateway that samples: `prepare.py`, `service.py`, `choice.py`, `record.py`, `remember.py`.

The steps of a request are listed in `mini_agentic_rl.gateway`.
"""
