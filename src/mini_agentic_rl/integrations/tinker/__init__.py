"""The Tinker API as a server: clients of Tinker train adapters and sample with them on a model of this computer.

Follow a request:

    server.py          `TinkerServer`: HTTP, keys, request limits, and how a session is found by its id
    wire/              requests and answers, in JSON and protobuf
    routes.py          paths, and `TinkerService`, which does the work; each request is answered at once by a promise
    promises.py        promises, and the order of a client's numbered requests
    sessions.py        owners of adapters; copies of adapters to sample with
    trainings.py       adapters that are created, trained and saved
    training.py        one adapter: gradients, optimizer steps, saving and loading
    losses.py          checked data and a loss, as the learner takes them
    targets.py         tokens asked for at places of sequences, packed as one tree
    adapters.py        the layers that an adapter changes, and its removal
    sampling.py        continuations and log-probabilities by the engine
    checkpoints.py     saved adapters, in a folder
    settings.py        limits of clients, options of the command, errors of a promise
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
