from .answers import Answers as Answers
from .pool import SamplerPool as SamplerPool
from .probing import Probing as Probing
from .publications import Publication as Publication
from .replica import Replica as Replica
