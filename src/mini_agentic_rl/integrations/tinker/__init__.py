"""The Tinker API as a server: clients of Tinker train adapters and sample with them on a model of this computer.

Follow a request:

    server.py          `TinkerServer`: HTTP server, keys, request limits
    routes.py          paths of the API
    requests.py        bodies of requests, and the data of losses and prompts
    protobuf.py        protobuf messages of requests and results
    service.py         `TinkerService`: creates, trains, saves and samples; long requests are answered with a promise
    promises.py        promises, and the order of a client's numbered requests
    sessions.py        clients, their models and samplers; snapshots of adapters to sample with
    training.py        one adapter: gradients, optimizer steps, saving, loading, removal; slots to sample with
    losses.py          losses by name; checks the data of a request and packs them as one tree for the learner
    sampling.py        continuations and log-probabilities by the engine
    checkpoints.py     saved adapters, in a folder
    settings.py        limits of clients, options of the command, errors of a promise
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
