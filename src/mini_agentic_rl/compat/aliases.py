"""`alias`: import names of other packages as aliases of this one.

The aliases hold for this process and, by a folder of `PYTHONPATH`, for every Python process that it starts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from types import ModuleType

from .finder import IMPORT_PATH, adopt, is_ours
from .names import ALIASES, PACKAGE


def alias(names: Iterable[str] = ALIASES) -> None:
    """Let `import agentlightning`, `agent_framework_lab_lightning` and `hello_agents.rl` find this package.

    With the first name, a trace that is opened by hand has no root span, as in agent-lightning. An installed package
    with one of the names is hidden, of `hello_agents` only its part `rl`. Calling it again changes nothing.

    Raises:
        UserError: the real package has been imported already, or a name is none of the three.
    """
    import wrapt  # here, since this module is imported with the package

    from ..errors import UserError

    names = list(names)
    for name in names:
        if name not in ALIASES:
            raise UserError(f"{name!r} cannot be an alias: expected one of {', '.join(ALIASES)}")
        real = sys.modules.get(name)
        if real is not None and not is_ours(real):
            raise UserError(
                f"{name} has been imported already, from {getattr(real, '__file__', None) or 'elsewhere'}: "
                "call mini_agentic_rl.compat.alias() before that, or start the program with "
                "`python -m mini_agentic_rl.compat run`"
            )
        adopt(name)
    if "agentlightning" in names:
        wrapt.register_post_import_hook(_omit_root_span, f"{PACKAGE}.tracer.otel")
    folder = str(IMPORT_PATH)
    if folder not in sys.path:
        sys.path.insert(1, folder)
    inherited = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part and part != folder]
    os.environ["PYTHONPATH"] = os.pathsep.join([folder, *inherited])


def _omit_root_span(module: ModuleType) -> None:
    """Let traces that are opened by hand have no root span."""
    module.OtelTracer.root_by_hand = False
