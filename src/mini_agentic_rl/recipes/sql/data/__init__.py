"""Questions to a SQL database: an invented medical one, and the conversation of an agent with any.

THE DATA ARE SYNTHETIC: every drug, disease and figure is invented by a random generator. Nothing here is medical
advice, and nothing here is about any real drug or disease.

`medical_database` makes the SQLite file, `MedicalQuestions` draws questions in English and Chinese with the SQL that
answers them, `medical_examples` makes conversations of them. The agent, its tools and these examples take their words
from `conversation`, so that what is imitated is token by token what the agent then sees.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
