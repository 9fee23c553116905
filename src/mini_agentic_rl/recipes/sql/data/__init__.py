"""Questions to a SQL database: an invented medical one, and the conversation of an agent with any.

THE DATA ARE SYNTHETIC: every drug, disease and figure is invented by a random generator. Nothing here is medical
advice, and nothing here is about any real drug or disease.

`medical_database` creates the SQLite file, `MedicalQuestions` draws questions in English and Chinese with their gold
queries, and `medical_examples` makes conversations of them. The agent and the examples share all prompts, so that the
examples have exactly the tokens that the agent sees.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
