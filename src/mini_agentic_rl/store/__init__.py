"""Stores: the queue, the spans and the resources that an algorithm and its runners share.

`LightningStore` is the contract. `InMemoryLightningStore`, `SqlLightningStore` and `MongoLightningStore` keep the data;
`LightningStoreServer` shares a store over HTTP and `LightningStoreClient` calls one there; `LightningStoreThreaded`
calls one from any thread. `open_store` makes a store from one line of text, `retry_rollouts` queues failed rollouts
again.

Names that need a database driver or the HTTP libraries are loaded when they are asked for, because those load slowly.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
