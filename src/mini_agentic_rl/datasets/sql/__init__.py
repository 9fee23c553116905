"""Questions to a SQL database: an invented medical one, and the conversation of an agent with any.

THE DATA ARE SYNTHETIC: every drug, disease and figure is invented by a random generator. Nothing here is medical
advice, and nothing here is about any real drug or disease.

`medical_database` makes the SQLite file, `MedicalQuestions` draws questions in English and Chinese with the SQL that
answers them, `medical_examples` makes conversations of them. The agent, its tools and these examples take their words
from `conversation`, so that what is imitated is token by token what the agent then sees.
"""

from .conversation import (
    QUERY_TOOL,
    SCHEMA_TOOL,
    SQL_TOOLS,
    Cell,
    answer_line,
    cell_text,
    demonstration,
    opening,
    question_of,
    quoted,
    rows_text,
    schema_text,
    system_prompt,
    table_names,
)
from .database import NOTICE, connect_in_memory, medical_database
from .questions import HIDDEN_TABLES, HINT, LEVELS, MedicalQuestions, medical_examples, medical_prompt

__all__ = [
    "HIDDEN_TABLES",
    "HINT",
    "LEVELS",
    "NOTICE",
    "QUERY_TOOL",
    "SCHEMA_TOOL",
    "SQL_TOOLS",
    "Cell",
    "MedicalQuestions",
    "answer_line",
    "cell_text",
    "connect_in_memory",
    "demonstration",
    "medical_database",
    "medical_examples",
    "medical_prompt",
    "opening",
    "question_of",
    "quoted",
    "rows_text",
    "schema_text",
    "system_prompt",
    "table_names",
]
