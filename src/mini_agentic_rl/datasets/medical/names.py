"""Invented names, each in English and in Chinese characters of about the same sound."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias


class Name(NamedTuple):
    """One thing in two languages."""

    en: str
    zh: str


Parts: TypeAlias = tuple[tuple[str, str], ...]

_SYLLABLES: Final[Parts] = (
    ("Ba", "巴"),
    ("Bo", "波"),
    ("Da", "达"),
    ("Du", "杜"),
    ("Fa", "法"),
    ("Fe", "菲"),
    ("Ga", "加"),
    ("Go", "戈"),
    ("Ka", "卡"),
    ("Ko", "科"),
    ("La", "拉"),
    ("Lo", "洛"),
    ("Ma", "马"),
    ("Mo", "莫"),
    ("Na", "纳"),
    ("No", "诺"),
    ("Pa", "帕"),
    ("Po", "坡"),
    ("Ra", "罗"),
    ("Sa", "萨"),
    ("So", "索"),
    ("Ta", "塔"),
    ("To", "托"),
    ("Va", "瓦"),
    ("Ve", "维"),
    ("Xe", "泽"),
    ("Ya", "雅"),
    ("Zu", "祖"),
)
_DRUG_ENDINGS: Final[Parts] = (
    ("quor", "阔"),
    ("vex", "韦"),
    ("dru", "德"),
    ("zit", "兹"),
    ("mib", "米"),
    ("lux", "露"),
)
_DISEASE_ENDINGS: Final[Parts] = (
    ("ra fever", "拉热"),
    ("mi syndrome", "米综合征"),
    ("go disease", "戈病"),
    ("lis rash", "利疹"),
    ("nor palsy", "诺麻痹"),
)


def drug_names(rng: random.Random, count: int) -> list[Name]:
    """`count` different names such as Velovex, 维洛韦."""
    return _names(rng, count, 2, _DRUG_ENDINGS)


def disease_names(rng: random.Random, count: int) -> list[Name]:
    """`count` different names such as Kamora fever, 卡莫拉热."""
    return _names(rng, count, 2, _DISEASE_ENDINGS)


def _names(rng: random.Random, count: int, syllables: int, endings: Parts) -> list[Name]:
    found: dict[str, str] = {}
    chinese: set[str] = set()
    for en, zh in _drawn(rng, syllables, endings):
        if en not in found and zh not in chinese:
            found[en] = zh
            chinese.add(zh)
        if len(found) == count:
            break
    return [Name(en, zh) for en, zh in found.items()]


def _drawn(rng: random.Random, syllables: int, endings: Parts) -> Iterator[tuple[str, str]]:
    while True:
        parts = [rng.choice(_SYLLABLES) for _ in range(syllables)]
        ending = rng.choice(endings)
        latin = "".join(part for part, _ in parts).capitalize() + ending[0]
        yield latin, "".join(part for _, part in parts) + ending[1]
