"""The rule that a room is entered by its face: other rooms import packages of it, never a module inside.

import-linter reads it by the name that `.importlinter` gives it.
"""

from __future__ import annotations

from typing import Any

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class FacesContract(Contract):
    """Forbid imports of a room's modules by other rooms. A room is a package directly below `root`; what it offers
    stands in its `__init__` or `__init__.pyi`, or in that of a package inside it. The packages in `wings` may import
    modules."""

    root = fields.StringField()
    rooms = fields.SetField(subfield=fields.StringField())
    wings = fields.SetField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Return every import that reaches past the face of one of `rooms`."""
        root: Any = self.root
        found = []
        wings = tuple(f"{root}.{name}." for name in self.wings)  # type: ignore[attr-defined]
        for room in sorted(str(name) for name in self.rooms):  # type: ignore[attr-defined]  # a field reads as its value
            whole = f"{root}.{room}"
            if whole not in graph.modules:
                continue
            for module in sorted(graph.find_descendants(whole)):
                if graph.find_children(module):
                    continue  # a package: it has a face of its own
                found += [
                    f"{importer} -> {module}"
                    for importer in sorted(graph.find_modules_that_directly_import(module))
                    if importer.startswith(f"{root}.") and not f"{importer}.".startswith((f"{whole}.", *wings))
                ]
        return ContractCheck(kept=not found, metadata={"found": found})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print the imports that were found."""
        output.print_error(f"{len(check.metadata['found'])} imports reach past a face:")
        for line in check.metadata["found"]:
            output.print_error(line)
