"""The doctor: rules over what a run has recorded, which say plainly what is wrong and which setting to change.

A run is looked at through one typed view (`view.py`). Each rule is a pure function from that view to a finding, or to
None; `rules.py` lists them all. The live view, the report, the dashboard and the command `doctor` show what
`diagnose` finds, and judge nothing themselves.
"""

from .finding import Finding
from .rewards import IDLE, SELECTION_GAP, IdleCause, idle_cause, nothing_to_select
from .rules import RULES, diagnose
from .view import WINDOW, Measured, RolloutFacts, RunView, StepNumbers
from .watch import RunWatch

__all__ = [
    "IDLE",
    "RULES",
    "SELECTION_GAP",
    "WINDOW",
    "Finding",
    "IdleCause",
    "Measured",
    "RolloutFacts",
    "RunView",
    "RunWatch",
    "StepNumbers",
    "diagnose",
    "idle_cause",
    "nothing_to_select",
]
