"""The tests of the store contract that take a `store`, on the store in MongoDB, and the walks beside the model."""

from __future__ import annotations

import inspect

from store import test_clock, test_concurrency, test_contract, test_health, test_listings, test_open
from store.test_properties import FEW_EXAMPLES, StoreMachine, run_machine

from .mongo_server import needs_mongo

pytestmark = needs_mongo

for _module in (test_clock, test_concurrency, test_contract, test_health, test_listings, test_open):
    for _name, _test in vars(_module).items():
        if _name.startswith("test_") and "store" in inspect.signature(_test).parameters:
            globals()[_name] = _test


def test_the_store_and_the_model_of_the_contract_never_differ() -> None:
    run_machine(lambda: StoreMachine("mongo"), FEW_EXAMPLES, derandomize=True)
