"""Distributions with plugins, written into a folder that is then on the path, as an installer would leave them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def write_distribution(
    folder: Path, name: str, points: Mapping[str, Mapping[str, str]], modules: Mapping[str, str], version: str = "1.0"
) -> None:
    """Write the modules of a distribution, and its metadata with its entry points by group."""
    for module, text in modules.items():
        (folder / f"{module}.py").write_text(text)
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    groups = [
        f"[mini_agentic_rl.{group}]\n" + "".join(f"{key} = {value}\n" for key, value in found.items())
        for group, found in points.items()
    ]
    (info / "entry_points.txt").write_text("\n".join(groups))
