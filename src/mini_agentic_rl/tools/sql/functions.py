"""The functions that a query may call: those that only compute, from what a table holds, something of its size.

Not among them: what loads code or files (`load_extension`), what makes long values out of nothing (`printf`,
`zeroblob`, `randomblob`, `hex`, `char`, `json_…`), chance (`random`), and what tells of the connection.
"""

from __future__ import annotations

from typing import Final

_TEXT: Final = "coalesce glob ifnull iif instr length like lower ltrim nullif replace rtrim substr substring trim upper"
_NUMBERS: Final = "abs ceil ceiling exp floor ln log log10 log2 mod pow power round sign sqrt trunc typeof"
_AGGREGATES: Final = "avg count group_concat max min sum total"
_WINDOWS: Final = "cume_dist dense_rank first_value lag last_value lead nth_value ntile percent_rank rank row_number"
_DATES: Final = "date datetime julianday strftime time unixepoch"

ALLOWED_FUNCTIONS: Final = frozenset(" ".join((_TEXT, _NUMBERS, _AGGREGATES, _WINDOWS, _DATES)).split())
"""Names in lower case. The operators LIKE and GLOB are functions to SQLite."""
