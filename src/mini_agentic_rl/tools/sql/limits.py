"""How much one query may be."""

from __future__ import annotations

from pydantic import Field

from ...config import Settings


class QueryLimits(Settings):
    """Bounds of one query. On Python 3.10, whose sqlite3 cannot set SQLite's limits, the length of a value is bounded
    by the memory of the process alone; where there is no Linux, that memory is bounded by the time alone."""

    max_characters: int = Field(default=2000, ge=1)
    """Characters of the query's text."""
    max_nesting: int = Field(default=24, ge=1)
    """Parentheses within parentheses."""
    timeout_seconds: float = Field(default=1.0, gt=0)
    """Seconds that it may run."""
    max_rows: int = Field(default=200, ge=1)
    """Rows that are returned; the rest is left out, and the result says so."""
    max_result_bytes: int = Field(default=65_536, ge=1)
    """About so many bytes of values are returned; the rest is left out, and the result says so."""
    max_value_bytes: int = Field(default=16_384, ge=1024)
    """Bytes of any one value, also of those that are computed on the way."""
    max_memory_mib: int = Field(default=256, ge=16)
    """Memory in MiB that the process of the database may take for its queries (Linux)."""
