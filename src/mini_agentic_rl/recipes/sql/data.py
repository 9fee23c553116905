"""Questions to a SQL database: an invented medical one, and the conversation of an agent with any.

THE DATA ARE SYNTHETIC: every drug, disease and figure is invented by a random generator. Nothing here is medical
advice, and nothing here is about any real drug or disease.

The database is a SQLite file, the same on every machine. Agents query one database; its twin has the same schema and
names but other facts. A query that answers a question on both is unlikely to be right by chance.

    drug --indication--> disease --disease_symptom--> symptom
    drug --contraindication--> disease        drug --interaction--> drug        drug --dosage

Questions in English and Chinese are drawn from templates, with their gold queries and results. The split of a question
is the hash of the drugs, diseases and symptoms in it, so val and test ask about others than train; without any, it is
the hash of the template and its values. A quarter of val and test uses templates that train never uses. Every gold
query gives 1 to `MAX_ROWS` rows, without NULL and not only a count of 0. The same arguments give the same rows on every
machine.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sqlite3
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from ...config import cache_dir
from ...datasets import DatasetError, Example, Form, Message, Row, Split, TaskRows, check_split, digest, split_of
from ...files import give_usual_modes, rename_over
from ...tools import text_tool
from .tool import Cell, cell_text, rows_text, schema_text

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

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
            rename_over(Path(name), path)
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


# Questions


@dataclass(frozen=True)
class Template:
    """One kind of question; `templates.toml` describes the fields."""

    name: str
    level: int
    takes: tuple[str, ...]
    english: tuple[str, ...]
    chinese: tuple[str, ...]
    sql: str
    held_out: bool = False
    ordered: bool = False


def _templates() -> Iterator[Template]:
    tables = tomllib.loads(files(__package__).joinpath("templates.toml").read_text(encoding="utf-8"))
    for name, table in tables.items():
        values: dict[str, Any] = {key: tuple(item) if isinstance(item, list) else item for key, item in table.items()}
        yield Template(name, **values)


TEMPLATES: Final = tuple(_templates())


# The agent, its tools and the examples to imitate all use these texts, so that examples have exactly the tokens that
# the agent sees. They are short, because a small model pays for every token.

QUERY_TOOL: Final = text_tool("query", "Run one SQLite SELECT.", "sql")
SCHEMA_TOOL: Final = text_tool("schema", "Show a table's columns and first rows.", "table")

SQL_TOOLS: Final = [QUERY_TOOL, SCHEMA_TOOL]
"""Tools of every call, also rendered into the prompt of an example."""

INSTRUCTIONS: Final = (
    'Answer from the SQLite database: call query with one SELECT, then reply "Answer: ..." with its result.'
)


def system_prompt(schema: str, hint: str = "") -> str:
    """Return the system prompt: the task, a hint about the database, and one line per table."""
    return "\n".join(part for part in (f"{INSTRUCTIONS} {hint}".strip(), schema) if part)


def opening(task: Mapping[str, Any], prompt: str) -> list[Message]:
    """Return the first messages of a rollout; `prompt` is the system prompt.

    Raises:
        ValueError: the task has no question.
    """
    return [{"role": "system", "content": prompt}, {"role": "user", "content": question_of(task)}]


def question_of(task: Mapping[str, Any]) -> str:
    """Return the question of a task.

    Raises:
        ValueError: the task has no question.
    """
    question = task.get("question")
    if not question:
        raise ValueError('a task of the SQL agent needs a "question"')
    return str(question)


def demonstration(task: Mapping[str, Any], prompt: str) -> list[Message]:
    """Return the messages of a correct rollout: the gold query, its rows, the answer.

    `task` needs `question`, `sql` and `rows`; `prompt` is the agent's system prompt.

    Raises:
        ValueError: the task lacks one of them.
    """
    if not task.get("sql") or not task.get("rows"):
        raise ValueError(f'row {task.get("id")!r}: a demonstration needs "sql" and the "rows" that it gives')
    arguments = json.dumps({"sql": task["sql"]}, ensure_ascii=False)
    name = QUERY_TOOL["function"]["name"]
    call = {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}
    return [
        *opening(task, prompt),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": rows_text(task["rows"])},
        {"role": "assistant", "content": answer_line(task["rows"])},
    ]


def answer_line(rows: Sequence[Sequence[Cell]]) -> str:
    """Return the reply for a result: "Answer: a; b" for two rows, "Answer: a, b" for two columns."""
    return f"Answer: {'; '.join(', '.join(map(cell_text, row)) for row in rows)}"


LEVELS: Final = (1, 2, 3, 4)
LANGUAGES: Final = ("en", "zh")
MAX_ROWS: Final = 12

_MAX_DRAWS: Final = 3000
_HELD_OUT_EVERY: Final = 4
_ENTITIES: Final = frozenset({"drug", "other_drug", "disease", "other_disease", "symptom", "other_symptom"})

HINT: Final = "All data are invented, no medical advice. In Chinese questions use the _zh columns."
"""Hint about the database in the system prompt."""
HIDDEN_TABLES: Final = ("meta",)
"""Tables that are not in the prompt."""

Language = Literal["en", "zh"]


class MedicalQuestions(TaskRows):
    """`size` different questions of one split, cycling through levels and languages.

    Each row has `id`, `question`, `language`, `difficulty` (its level), `template`, `held_out` (True if train does not
    use its template), `sql` (the gold query), `ordered` (True if the order of its rows counts), `rows` (its result) and
    `answer` (the result as text).
    """

    def __init__(
        self,
        split: str = "train",
        size: int = 1000,
        seed: int = 0,
        difficulty: int | Sequence[int] = LEVELS,
        languages: Sequence[Language] = LANGUAGES,
    ) -> None:
        """`difficulty` is one or several levels (see `Template.level`).

        Raises:
            DatasetError: an unknown split, level or language, a negative size, or a size above the number of questions.
        """
        self.split = check_split(split)
        levels = (difficulty,) if isinstance(difficulty, int) else tuple(difficulty)
        if not levels or not set(levels) <= set(LEVELS):
            raise DatasetError(f"difficulty must be one or more of the levels {LEVELS}, not {difficulty!r}")
        if not languages or not set(languages) <= set(LANGUAGES):
            raise DatasetError(f"languages must be one or more of {LANGUAGES}, not {languages!r}")
        if size < 0:
            raise DatasetError(f"size must be 0 or more, not {size}")
        drawn = _drawn(self.split, size, seed, levels, tuple(languages))
        super().__init__([{**row, "rows": [list(one) for one in row["rows"]]} for row in drawn])


@lru_cache(maxsize=8)
def _drawn(
    split: Split, size: int, seed: int, levels: tuple[int, ...], languages: tuple[Language, ...]
) -> tuple[Row, ...]:
    """Return the rows; cached, because each needs a query."""
    drawer = _Drawer(split, random.Random(f"medical/{split}/{seed}"))
    kinds = [(level, language) for level in levels for language in languages]
    return tuple(drawer.draw(index // len(kinds), *kinds[index % len(kinds)]) for index in range(size))


class _Drawer:
    """Draws rows without repeating a question."""

    def __init__(self, split: str, rng: random.Random) -> None:
        drugs, diseases = entities()
        self._values: dict[str, Sequence[Name]] = {
            "drug": drugs,
            "disease": diseases,
            "symptom": SYMPTOMS,
            "class": CLASSES,
            "form": FORMS,
            "department": DEPARTMENTS,
            "year": [Name(str(year), str(year)) for year in range(YEARS[0] + 5, YEARS[1] - 5)],
            "severity": [Name(str(severity), str(severity)) for severity in range(1, 6)],
        }
        self._split = split
        self._rng = rng
        self._used: set[str] = set()
        self._connection = connect_in_memory()

    def draw(self, round_: int, level: int, language: str) -> Row:
        """Return a row of this level and language; each fourth round of val and test uses a held-out template."""
        held_out = self._split != "train" and round_ % _HELD_OUT_EVERY == _HELD_OUT_EVERY - 1
        templates = [template for template in TEMPLATES if template.level == level and template.held_out == held_out]
        for _ in range(_MAX_DRAWS):
            row = self._try(self._rng.choice(templates), language)
            if row is not None and row["question"] not in self._used:
                self._used.add(row["question"])
                return row
        raise DatasetError(
            f"no further {self._split} question of level {level} found after {len(self._used)}; "
            "ask for a smaller size or more levels"
        )

    def _try(self, template: Template, language: str) -> Row | None:
        chosen = self._choose(template)
        names = sorted(value.en for kind, value in chosen.items() if kind in _ENTITIES)
        key = "|".join(names or [template.name, *(value.en for value in chosen.values())])
        if split_of(key) != self._split:
            return None
        texts = {kind: value.en if language == "en" else value.zh for kind, value in chosen.items()}
        phrasings = template.english if language == "en" else template.chinese
        question = self._rng.choice(phrasings).format(**texts)
        sql = template.sql.format(z="" if language == "en" else "_zh", **texts)
        rows = self._connection.execute(sql).fetchall()
        has_null = any(cell is None for row in rows for cell in row)
        if not 1 <= len(rows) <= MAX_ROWS or has_null or rows == [(0,)]:
            return None
        return {
            "id": f"medical-{self._split}-{digest(question)[:12]}",
            "question": question,
            "answer": "; ".join(", ".join(map(cell_text, row)) for row in rows),
            "sql": sql,
            "rows": [list(row) for row in rows],
            "ordered": template.ordered,
            "language": language,
            "difficulty": template.level,
            "template": template.name,
            "held_out": template.held_out,
        }

    def _choose(self, template: Template) -> dict[str, Name]:
        """Return a value for each field of a template; an `other_` field gets a different value of the same kind."""
        chosen: dict[str, Name] = {}
        for kind in template.takes:
            values = self._values[kind.removeprefix("other_")]
            taken = chosen.get(kind.removeprefix("other_"))
            chosen[kind] = self._rng.choice([value for value in values if value != taken])
        return chosen


@cache
def medical_prompt() -> str:
    """Return the system prompt of the SQL agent over the medical database."""
    with closing(connect_in_memory()) as connection:
        return system_prompt(schema_text(connection, HIDDEN_TABLES), HINT)


def medical_examples(rows: Sequence[Row], form: Form) -> list[Example]:
    """Return one example per row, with the agent's `tools`: for `sft` the gold query as a tool call, its rows and the
    answer; for `rl` the prompt, and the row with its gold query `sql`.

    Raises:
        DatasetError: another form.
    """
    if form not in ("sft", "rl"):
        raise DatasetError(f"medical has the forms sft and rl, not {form}", setting="dataset")
    prompt = medical_prompt()
    if form == "sft":
        return [{"messages": demonstration(row, prompt), "tools": SQL_TOOLS} for row in rows]
    return [{**row, "prompt": opening(row, prompt), "ground_truth": row["answer"], "tools": SQL_TOOLS} for row in rows]
