"""Names, classes, symptoms and the like of the invented world, in English and Chinese."""

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


def _pairs(text: str) -> tuple[Name, ...]:
    return tuple(Name(*pair.split("=")) for pair in text.split(";"))


CLASSES: Final = _pairs(
    "analgesic=镇痛药;antibiotic=抗生素;antiviral=抗病毒药;antifungal=抗真菌药;antihistamine=抗组胺药;"
    "sedative=镇静药;stimulant=兴奋药;diuretic=利尿药;laxative=泻药;antacid=抗酸药;vaccine=疫苗;vitamin=维生素;"
    "hormone=激素;steroid=类固醇;relaxant=松弛药;anesthetic=麻醉药;antidote=解毒药;expectorant=祛痰药;"
    "tonic=滋补药;antiseptic=消毒药"
)
"""Of drugs."""

FORMS: Final = _pairs(
    "tablet=片剂;capsule=胶囊;syrup=糖浆;injection=注射剂;cream=乳膏;spray=喷雾剂;patch=贴剂;drops=滴剂"
)
"""Of drugs: how they are given."""

DEPARTMENTS: Final = _pairs(
    "cardiology=心内科;neurology=神经内科;dermatology=皮肤科;oncology=肿瘤科;urology=泌尿科;"
    "pediatrics=儿科;ophthalmology=眼科;surgery=外科;psychiatry=精神科;endocrinology=内分泌科"
)
"""That diseases belong to."""

SYMPTOMS: Final = _pairs(
    "fever=发热;cough=咳嗽;headache=头痛;nausea=恶心;fatigue=疲劳;dizziness=头晕;itching=瘙痒;swelling=肿胀;"
    "insomnia=失眠;sweating=出汗;chills=寒战;cramps=痉挛;numbness=麻木;tremor=震颤;thirst=口渴;hiccups=打嗝;"
    "sneezing=打喷嚏;blurred vision=视力模糊;hair loss=脱发;back pain=背痛;chest pain=胸痛;sore throat=咽痛;"
    "dry mouth=口干;weight loss=体重下降;joint pain=关节痛;earache=耳痛;toothache=牙痛;rash=皮疹;"
    "palpitations=心悸;muscle ache=肌肉酸痛;stomach ache=胃痛;vomiting=呕吐;diarrhea=腹泻;constipation=便秘;"
    "hoarseness=声音嘶哑;pallor=面色苍白;wheezing=喘鸣;nosebleed=流鼻血;confusion=意识模糊;irritability=易怒"
)
"""Ordinary words; which disease has which is invented."""

AGE_GROUPS: Final = ("child", "adult", "elderly")
"""Of dosages."""
