"""Questions about an invented medical database, with the SQL that answers them, in English and Chinese.

THE DATA ARE SYNTHETIC: every drug, disease and figure is invented by a random generator. Nothing here is medical
advice, and nothing here is about any real drug or disease.

`database` makes the SQLite file, `templates` hold the questions, `MedicalQuestions` fills them with names, `examples`
makes them conversations.
"""

from .database import NOTICE, connect_in_memory, medical_database
from .examples import HIDDEN_TABLES, HINT, medical_examples, medical_prompt
from .questions import LEVELS, MedicalQuestions

__all__ = [
    "HIDDEN_TABLES",
    "HINT",
    "LEVELS",
    "NOTICE",
    "MedicalQuestions",
    "connect_in_memory",
    "medical_database",
    "medical_examples",
    "medical_prompt",
]
