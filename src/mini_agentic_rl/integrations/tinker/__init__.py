"""The Tinker API as a server: clients of Tinker train adapters and sample with them on a model of this computer.

Follow a request:

    server.py          `TinkerServer`: HTTP, keys and limits of the house
    routes.py          begin, train, sample, fetch results; records.py looks things up
    wire/              what is sent and answered, in JSON and protobuf
    service.py         `TinkerService`: what is done; answered at once by a promise (promises.py)
    trainings.py       adapters that begin, learn and are saved; snapshots.py has copies of them to sample with
    sessions.py        whose it is; turns.py puts a client's requests into their order
    losses.py          checked data and a loss, as the learner takes them
    training.py        a client's adapter: gradients, optimizer steps, saving and loading
    sampling.py        continuations by the engine, with weights in slots (slots.py); scoring.py reads prompts
    checkpoints.py     what is saved, in a folder

settings.py bounds what clients hold, command_settings.py has the settings of the command, and errors.py what a client
is told when it fetches a result that there cannot be.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
