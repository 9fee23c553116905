"""A store from one line of text, as a person writes it on a command line or into a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from ..errors import UserError
from ..plugins import load_plugin
from ..redaction import HIDDEN, shown_address
from .base import LightningStore

RUN_STORE_FILE: Final = "rollouts.db"
"""Name of the store file in the folder of a training run."""
MEMORY: Final = "memory"
"""Name of a store that lives as long as its process."""


def open_store(
    spec: str | Path, *, api_key: str | None = None, create: bool = True, retry_seconds: float = 60.0
) -> LightningStore:
    """Open the store that `spec` names; the caller closes it.

    | spec | store |
    |---|---|
    | `memory` | a new one in this process |
    | a file, or `sqlite:///` and a file | `SqlLightningStore` on that SQLite file |
    | the folder of a training run | `SqlLightningStore` on the `rollouts.db` in it |
    | `postgresql://…` | `SqlLightningStore` on that database |
    | `mongodb://…/database` | `MongoLightningStore` on that database |
    | `http://…`, `https://…` | `LightningStoreClient` of the store server there |

    Args:
        spec: See above.
        api_key: Bearer token, for a store server.
        create: Make a file that is not there. False: that is an error.
        retry_seconds: For how long a store server that cannot be reached is tried again.

    Raises:
        UserError: `spec` names no store (the message lists the forms that do), or the store cannot be opened.
    """
    text = str(spec)
    scheme = urlsplit(text).scheme.lower() if "://" in text else ""
    if f"://{HIDDEN}@" in text:
        raise UserError(f"store {text}: its user and password are kept in no file: give the whole URL again")
    if text == MEMORY:
        from .memory import InMemoryLightningStore

        return InMemoryLightningStore()
    if scheme in ("http", "https"):
        from .http.client import LightningStoreClient

        return LightningStoreClient(text, api_key=api_key, retry_seconds=retry_seconds)
    if scheme.partition("+")[0] in ("postgresql", "postgres"):
        from .sql.store import SqlLightningStore

        return SqlLightningStore(text)
    if scheme not in ("", "sqlite"):
        opener = load_plugin("stores", scheme, setting=None)
        if opener is not None:
            opened: LightningStore = opener(text)
            return opened
        raise UserError(
            f"store {shown_address(text)}: expected a run folder, a .db file, sqlite:///file, postgresql://, "
            "mongodb:// or http://"
        )
    return _open_file(text.removeprefix("sqlite:///"), create=create)


def _open_file(name: str, *, create: bool) -> LightningStore:
    from .sql.store import SqlLightningStore

    path = Path(name).expanduser()
    if path.is_dir():
        path = path / RUN_STORE_FILE
        if not path.exists():
            raise UserError(f"store {name}: the folder holds no {RUN_STORE_FILE}; name a run folder or a .db file")
    elif not create and not path.exists():
        raise UserError(f"store {name}: there is no such file or folder")
    return SqlLightningStore(path)
