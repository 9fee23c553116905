"""The unit table: each unit in the metric system, to three decimals as tables print them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class MeasuringUnit:
    """A unit; `factor` is one of it in `base`, to three decimals."""

    name: str
    plural: str
    factor: str
    base: str


UNITS: Final = (
    MeasuringUnit("inch", "inches", "2.54", "centimetres"),
    MeasuringUnit("hand", "hands", "10.16", "centimetres"),
    MeasuringUnit("palm", "palms", "7.62", "centimetres"),
    MeasuringUnit("digit", "digits", "1.905", "centimetres"),
    MeasuringUnit("nail", "nails", "5.715", "centimetres"),
    MeasuringUnit("finger", "fingers", "2.223", "centimetres"),
    MeasuringUnit("line", "lines", "0.212", "centimetres"),
    MeasuringUnit("foot", "feet", "0.305", "metres"),
    MeasuringUnit("yard", "yards", "0.914", "metres"),
    MeasuringUnit("furlong", "furlongs", "201.168", "metres"),
    MeasuringUnit("perch", "perches", "5.029", "metres"),
    MeasuringUnit("pace", "paces", "0.762", "metres"),
    MeasuringUnit("cubit", "cubits", "0.457", "metres"),
    MeasuringUnit("bolt", "bolts", "36.576", "metres"),
    MeasuringUnit("skein", "skeins", "109.728", "metres"),
    MeasuringUnit("shackle", "shackles", "27.432", "metres"),
    MeasuringUnit("mile", "miles", "1.609", "kilometres"),
    MeasuringUnit("nautical mile", "nautical miles", "1.852", "kilometres"),
    MeasuringUnit("verst", "versts", "1.067", "kilometres"),
    MeasuringUnit("block", "blocks", "0.08", "kilometres"),
    MeasuringUnit("pound", "pounds", "0.454", "kilograms"),
    MeasuringUnit("stone", "stones", "6.35", "kilograms"),
    MeasuringUnit("talent", "talents", "26.2", "kilograms"),
    MeasuringUnit("quarter", "quarters", "12.701", "kilograms"),
    MeasuringUnit("clove", "cloves", "3.175", "kilograms"),
    MeasuringUnit("mark", "marks", "0.249", "kilograms"),
    MeasuringUnit("ton", "tons", "1016.047", "kilograms"),
    MeasuringUnit("maund", "maunds", "37.324", "kilograms"),
    MeasuringUnit("gallon", "gallons", "3.785", "litres"),
    MeasuringUnit("pint", "pints", "0.473", "litres"),
    MeasuringUnit("peck", "pecks", "8.81", "litres"),
    MeasuringUnit("gill", "gills", "0.118", "litres"),
    MeasuringUnit("cup", "cups", "0.237", "litres"),
    MeasuringUnit("keg", "kegs", "58.674", "litres"),
    MeasuringUnit("butt", "butts", "490.978", "litres"),
    MeasuringUnit("firkin", "firkins", "40.915", "litres"),
)
"""Units of the splits `train` and `val`."""

HELD_OUT_UNITS: Final = (
    MeasuringUnit("span", "spans", "22.86", "centimetres"),
    MeasuringUnit("ell", "ells", "114.3", "centimetres"),
    MeasuringUnit("fathom", "fathoms", "1.829", "metres"),
    MeasuringUnit("chain", "chains", "20.117", "metres"),
    MeasuringUnit("rod", "rods", "5.029", "metres"),
    MeasuringUnit("league", "leagues", "4.828", "kilometres"),
    MeasuringUnit("hundredweight", "hundredweights", "50.802", "kilograms"),
    MeasuringUnit("slug", "slugs", "14.594", "kilograms"),
    MeasuringUnit("quart", "quarts", "0.946", "litres"),
    MeasuringUnit("bushel", "bushels", "35.239", "litres"),
)
"""Units of the split `test`, none of which is trained."""

TRANSFER_UNITS: Final = (
    *(unit for unit in HELD_OUT_UNITS if unit.base == "metres"),
    MeasuringUnit("ounce", "ounces", "28.35", "grams"),
    MeasuringUnit("carat", "carats", "0.2", "grams"),
    MeasuringUnit("fortnight", "fortnights", "14", "days"),
    MeasuringUnit("week", "weeks", "7", "days"),
)
"""Units of the split `transfer`: of other kinds too."""

_BY_NAME: Final = {
    name: unit for unit in (*UNITS, *HELD_OUT_UNITS, *TRANSFER_UNITS) for name in (unit.name, unit.plural)
}


def named(name: str) -> MeasuringUnit | None:
    """Return the unit of a name, in the singular or the plural; None where the table has none."""
    return _BY_NAME.get(" ".join(name.lower().split()))
