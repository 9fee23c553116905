from .database import SqlDatabase as SqlDatabase
from .query import QueryError as QueryError
from .query import QueryLimits as QueryLimits
from .query import QueryResult as QueryResult
from .query import SqlToolError as SqlToolError
