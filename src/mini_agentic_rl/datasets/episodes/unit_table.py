"""The unit table: what each unit is in the metric system, by its definition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class MeasuringUnit:
    """A unit; `factor` is what one of it is in `base`, exactly."""

    name: str
    plural: str
    factor: str
    base: str


UNITS: Final = (
    MeasuringUnit("inch", "inches", "2.54", "centimetres"),
    MeasuringUnit("hand", "hands", "10.16", "centimetres"),
    MeasuringUnit("foot", "feet", "0.3048", "metres"),
    MeasuringUnit("yard", "yards", "0.9144", "metres"),
    MeasuringUnit("furlong", "furlongs", "201.168", "metres"),
    MeasuringUnit("mile", "miles", "1.609344", "kilometres"),
    MeasuringUnit("nautical mile", "nautical miles", "1.852", "kilometres"),
    MeasuringUnit("pound", "pounds", "0.45359237", "kilograms"),
    MeasuringUnit("stone", "stones", "6.35029318", "kilograms"),
    MeasuringUnit("gallon", "gallons", "3.785411784", "litres"),
    MeasuringUnit("pint", "pints", "0.473176473", "litres"),
)
"""Units of stories to train on."""

OTHER_UNITS: Final = (
    MeasuringUnit("fathom", "fathoms", "1.8288", "metres"),
    MeasuringUnit("chain", "chains", "20.1168", "metres"),
    MeasuringUnit("rod", "rods", "5.0292", "metres"),
    MeasuringUnit("ounce", "ounces", "28.349523125", "grams"),
    MeasuringUnit("carat", "carats", "0.2", "grams"),
    MeasuringUnit("fortnight", "fortnights", "14", "days"),
    MeasuringUnit("week", "weeks", "7", "days"),
)
"""Units of stories that are never trained."""

_BY_NAME: Final = {name: unit for unit in (*UNITS, *OTHER_UNITS) for name in (unit.name, unit.plural)}


def named(name: str) -> MeasuringUnit | None:
    """Return the unit of a name, in the singular or the plural; None where the table has none."""
    return _BY_NAME.get(" ".join(name.lower().split()))
