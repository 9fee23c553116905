"""The parts that every server of this project shares; nothing here knows what is served.

`ServerThread` runs an ASGI application in a thread, and `AdmittingServer` puts an `Admission` in front of it: keys,
rate, concurrency, pausing, draining. `read_body`, `json_object` and `checked` read bounded bodies, every failure is an
`HttpError`, `new_app` and `AdmittedEndpoint` turn it into a response in the server's own shape, `RequestMetrics` counts
requests for Prometheus, and `document` puts an OpenAPI document together.

What needs starlette, uvicorn or prometheus_client is loaded when it is asked for.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
