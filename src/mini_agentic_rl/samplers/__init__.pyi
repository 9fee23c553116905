from .base import Sampler as Sampler
from .base import SamplerLoad as SamplerLoad
from .errors import ContextLengthError as ContextLengthError
from .hand_over import HandOver as HandOver
from .own import PolicySampler as PolicySampler
