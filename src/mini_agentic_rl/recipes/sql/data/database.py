"""The medical database: an invented world of drugs and diseases as a SQLite file, the same on every machine.

Agents query one database; its twin has the same schema and names but other facts. A query that answers a question on
both is unlikely to be right by chance.

    drug --indication--> disease --disease_symptom--> symptom
    drug --contraindication--> disease        drug --interaction--> drug        drug --dosage
"""

from __future__ import annotations

import hashlib
import os
import random
import sqlite3
import tempfile
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, NamedTuple

from ....config import cache_dir
from ....files import give_usual_modes

# Names, classes, symptoms and the like of the invented world, in English and Chinese.


class Name(NamedTuple):
    """One thing in two languages."""

    en: str
    zh: str


def _pairs(text: str) -> tuple[Name, ...]:
    return tuple(Name(*pair.split("=")) for pair in text.split(";"))


_SYLLABLES: Final = _pairs(
    "Ba=巴;Bo=波;Da=达;Du=杜;Fa=法;Fe=菲;Ga=加;Go=戈;Ka=卡;Ko=科;La=拉;Lo=洛;Ma=马;Mo=莫;Na=纳;No=诺;Pa=帕;Po=坡;Ra=罗;Sa=萨;"
    "So=索;Ta=塔;To=托;Va=瓦;Ve=维;Xe=泽;Ya=雅;Zu=祖"
)
_DRUG_ENDINGS: Final = _pairs("quor=阔;vex=韦;dru=德;zit=兹;mib=米;lux=露")
_DISEASE_ENDINGS: Final = _pairs("ra fever=拉热;mi syndrome=米综合征;go disease=戈病;lis rash=利疹;nor palsy=诺麻痹")


def _names(rng: random.Random, count: int, endings: Sequence[Name]) -> list[Name]:
    """Return `count` different names such as Velovex, 维洛韦: two syllables and an ending."""
    chinese_by_english: dict[str, str] = {}
    while len(chinese_by_english) < count:
        syllables = [rng.choice(_SYLLABLES) for _ in range(2)]
        ending = rng.choice(endings)
        english = "".join(syllable.en for syllable in syllables).capitalize() + ending.en
        chinese = "".join(syllable.zh for syllable in syllables) + ending.zh
        if english not in chinese_by_english and chinese not in chinese_by_english.values():
            chinese_by_english[english] = chinese
    return [Name(english, chinese) for english, chinese in chinese_by_english.items()]


CLASSES: Final = _pairs(
    "analgesic=镇痛药;antibiotic=抗生素;antiviral=抗病毒药;antifungal=抗真菌药;antihistamine=抗组胺药;"
    "sedative=镇静药;stimulant=兴奋药;diuretic=利尿药;laxative=泻药;antacid=抗酸药;vaccine=疫苗;vitamin=维生素;"
    "hormone=激素;steroid=类固醇;relaxant=松弛药;anesthetic=麻醉药;antidote=解毒药;expectorant=祛痰药;"
    "tonic=滋补药;antiseptic=消毒药"
)
"""Classes of drugs."""

FORMS: Final = _pairs(
    "tablet=片剂;capsule=胶囊;syrup=糖浆;injection=注射剂;cream=乳膏;spray=喷雾剂;patch=贴剂;drops=滴剂"
)
"""Forms of drugs."""

DEPARTMENTS: Final = _pairs(
    "cardiology=心内科;neurology=神经内科;dermatology=皮肤科;oncology=肿瘤科;urology=泌尿科;"
    "pediatrics=儿科;ophthalmology=眼科;surgery=外科;psychiatry=精神科;endocrinology=内分泌科"
)
"""Departments of diseases."""

SYMPTOMS: Final = _pairs(
    "fever=发热;cough=咳嗽;headache=头痛;nausea=恶心;fatigue=疲劳;dizziness=头晕;itching=瘙痒;swelling=肿胀;"
    "insomnia=失眠;sweating=出汗;chills=寒战;cramps=痉挛;numbness=麻木;tremor=震颤;thirst=口渴;hiccups=打嗝;"
    "sneezing=打喷嚏;blurred vision=视力模糊;hair loss=脱发;back pain=背痛;chest pain=胸痛;sore throat=咽痛;"
    "dry mouth=口干;weight loss=体重下降;joint pain=关节痛;earache=耳痛;toothache=牙痛;rash=皮疹;"
    "palpitations=心悸;muscle ache=肌肉酸痛;stomach ache=胃痛;vomiting=呕吐;diarrhea=腹泻;constipation=便秘;"
    "hoarseness=声音嘶哑;pallor=面色苍白;wheezing=喘鸣;nosebleed=流鼻血;confusion=意识模糊;irritability=易怒"
)
"""Symptoms are ordinary words. The symptoms of a disease are invented."""

AGE_GROUPS: Final = ("child", "adult", "elderly")
"""Age groups of dosages."""

VERSION: Final = 1
"""Version of the generator, part of the file names."""

NOTICE: Final = (
    "Synthetic data, made by a random generator. Every drug, disease and figure is invented. This is no medical advice."
)
NOTICE_ZH: Final = "合成数据，由随机生成器生成；所有药品、疾病和数值均为虚构，不构成任何医疗建议。"

DRUGS: Final = 300
DISEASES: Final = 150
YEARS: Final = (1990, 2024)
"""First and last year of approval."""

SCHEMA: Final = files(__package__).joinpath("schema.sql").read_text(encoding="utf-8")


def medical_database(folder: Path | None = None, *, twin: bool = False) -> Path:
    """Return the SQLite file, created atomically if it does not exist.

    Args:
        folder: its folder; None takes `medical` in the cache folder.
        twin: the twin, with the same names and other facts.
    """
    folder = cache_dir() / "medical" if folder is None else folder
    digest = hashlib.blake2b(f"{VERSION}{SCHEMA}".encode(), digest_size=4).hexdigest()
    path = folder / f"medical-{digest}{'-twin' if twin else ''}.db"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=".medical-", dir=folder)
        os.close(handle)
        try:
            connection = sqlite3.connect(name)
            try:
                fill(connection, twin=twin)
            finally:
                connection.close()
            give_usual_modes(Path(name))
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    return path


def connect_in_memory(*, twin: bool = False) -> sqlite3.Connection:
    """Return the same database in memory."""
    connection = sqlite3.connect(":memory:")
    fill(connection, twin=twin)
    return connection


def entities() -> tuple[list[Name], list[Name]]:
    """Return the names of all drugs and of all diseases."""
    rng = random.Random(f"medical/{VERSION}/names")
    return _names(rng, DRUGS, _DRUG_ENDINGS), _names(rng, DISEASES, _DISEASE_ENDINGS)


def fill(connection: sqlite3.Connection, *, twin: bool = False) -> None:
    """Create and fill the tables of an empty database."""
    rng = random.Random(f"medical/{VERSION}/{'twin' if twin else 'facts'}")
    drugs, diseases = entities()
    connection.executescript(SCHEMA)
    _insert(connection, "meta", sorted({"notice": NOTICE, "notice_zh": NOTICE_ZH, "version": str(VERSION)}.items()))
    prices = rng.sample(range(150, 30_000), DRUGS)  # different prices: a cheapest drug exists
    _insert(
        connection,
        "drug",
        [
            (id_, *name, *rng.choice(CLASSES), *rng.choice(FORMS), price / 100, rng.randint(*YEARS))
            for id_, (name, price) in enumerate(zip(drugs, prices, strict=True), 1)
        ],
    )
    _insert(
        connection,
        "disease",
        [(id_, *name, *rng.choice(DEPARTMENTS), rng.randint(1, 5)) for id_, name in enumerate(diseases, 1)],
    )
    _insert(connection, "symptom", [(id_, *name) for id_, name in enumerate(SYMPTOMS, 1)])
    symptoms = [
        (disease, symptom)
        for disease in range(1, DISEASES + 1)
        for symptom in sorted(rng.sample(range(1, len(SYMPTOMS) + 1), rng.randint(3, 6)))
    ]
    _insert(connection, "disease_symptom", symptoms)
    indications, contraindications = [], []
    for drug in range(1, DRUGS + 1):
        related = rng.sample(range(1, DISEASES + 1), rng.randint(3, 6))
        treated = rng.randint(1, 3)
        indications += [(drug, disease, rng.randint(1, 3)) for disease in sorted(related[:treated])]
        contraindications += [(drug, disease) for disease in sorted(related[treated:])]
    _insert(connection, "indication", indications)
    _insert(connection, "contraindication", contraindications)
    pairs = {(a, b) for a in range(1, DRUGS + 1) for b in rng.sample(range(1, DRUGS + 1), 2) if a < b}
    severities = {pair: rng.randint(1, 3) for pair in sorted(pairs)}
    both = severities | {(b, a): severity for (a, b), severity in severities.items()}
    _insert(connection, "interaction", [(a, b, severity) for (a, b), severity in sorted(both.items())])
    _insert(
        connection,
        "dosage",
        [
            (drug, group, 2.5 * rng.randint(1, 200), rng.randint(1, 4))
            for drug in range(1, DRUGS + 1)
            for group in AGE_GROUPS
        ],
    )
    connection.commit()


def _insert(connection: sqlite3.Connection, table: str, rows: Sequence[Sequence[Any]]) -> None:
    marks = ",".join("?" * len(rows[0]))
    connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
