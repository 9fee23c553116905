"""The parts that all servers of this project share.

`AdmittingServer` runs an ASGI application in a thread, within an `Admission`: keys, rate, concurrency, pausing,
draining. `read_body`, `json_object` and `checked` read bounded bodies, every failure is an
`HttpError`, `new_app` and `AdmittedEndpoint` turn it into a response in the server's own shape, and `RequestMetrics`
counts requests for Prometheus.

Modules that need starlette, uvicorn or prometheus_client are loaded on first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
