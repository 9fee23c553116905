"""The questions: for each, ways of asking in two languages and the SQL that answers it.

In the SQL and the phrasings, `{drug}`, `{disease}` and the like are names in the language of the question, and `{z}` is
"" in an English one and "_zh" in a Chinese one, so that `name{z}` is the column of that language.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Template:
    """One kind of question."""

    name: str
    level: int
    """1 one row of one table · 2 filters and totals over one table · 3 joins · 4 joins with conditions or totals."""
    takes: tuple[str, ...]
    """Values to fill in, in this order: drug, other_drug, disease, other_disease, symptom, other_symptom, class,
    form, department, year, severity."""
    english: tuple[str, ...]
    chinese: tuple[str, ...]
    sql: str
    held_out: bool = False
    """True if it is asked in the splits val and test alone."""
    ordered: bool = False
    """True if the order of the rows is part of the answer."""


_DISEASES_OF = "JOIN disease s ON s.id = i.disease_id"
_DRUGS_OF = "JOIN drug d ON d.id = i.drug_id"

TEMPLATES: Final = (
    Template(
        "price",
        1,
        ("drug",),
        ("What is the price of {drug}?", "How much does {drug} cost?"),
        ("{drug}的价格是多少？", "{drug}多少钱一盒？"),
        "SELECT price FROM drug WHERE name{z} = '{drug}'",
    ),
    Template(
        "class",
        1,
        ("drug",),
        ("Which class does {drug} belong to?", "What kind of drug is {drug}?"),
        ("{drug}属于哪一类药物？", "{drug}是什么类别的药？"),
        "SELECT class{z} FROM drug WHERE name{z} = '{drug}'",
    ),
    Template(
        "form",
        1,
        ("drug",),
        ("In which form is {drug} given?", "What is the dosage form of {drug}?"),
        ("{drug}是什么剂型？", "{drug}的剂型是什么？"),
        "SELECT form{z} FROM drug WHERE name{z} = '{drug}'",
    ),
    Template(
        "year",
        1,
        ("drug",),
        ("In which year was {drug} approved?", "When was {drug} approved?"),
        ("{drug}是哪一年批准的？", "{drug}的批准年份是哪年？"),
        "SELECT year FROM drug WHERE name{z} = '{drug}'",
    ),
    Template(
        "department",
        1,
        ("disease",),
        ("Which department treats {disease}?", "Where is {disease} treated?"),
        ("{disease}应该看哪个科？", "哪个科室治疗{disease}？"),
        "SELECT department{z} FROM disease WHERE name{z} = '{disease}'",
    ),
    Template(
        "severity",
        1,
        ("disease",),
        ("How severe is {disease}?", "What is the severity of {disease}?"),
        ("{disease}的严重程度是几级？", "{disease}有多严重？"),
        "SELECT severity FROM disease WHERE name{z} = '{disease}'",
    ),
    Template(
        "form_and_price",
        1,
        ("drug",),
        ("What are the form and the price of {drug}?",),
        ("{drug}的剂型和价格分别是什么？",),
        "SELECT form{z}, price FROM drug WHERE name{z} = '{drug}'",
        held_out=True,
    ),
    Template(
        "department_and_severity",
        1,
        ("disease",),
        ("What are the department and the severity of {disease}?",),
        ("{disease}的科室和严重程度分别是什么？",),
        "SELECT department{z}, severity FROM disease WHERE name{z} = '{disease}'",
        held_out=True,
    ),
    Template(
        "count_class",
        2,
        ("class",),
        ("How many drugs belong to the class {class}?", "How many {class} drugs are there?"),
        ("{class}类药物有多少种？", "一共有多少种{class}？"),
        "SELECT COUNT(*) FROM drug WHERE class{z} = '{class}'",
    ),
    Template(
        "count_class_year",
        2,
        ("class", "year"),
        ("How many {class} drugs were approved after {year}?", "Count the {class} drugs approved after {year}."),
        ("{year}年以后批准的{class}有多少种？", "有多少种{class}是在{year}年之后批准的？"),
        "SELECT COUNT(*) FROM drug WHERE class{z} = '{class}' AND year > {year}",
    ),
    Template(
        "average_price",
        2,
        ("class", "form"),
        ("What is the average price of {class} drugs in the form {form}?", "How much is a {class} {form} on average?"),
        ("{form}形式的{class}平均价格是多少？", "{class}{form}的平均价格是多少？"),
        "SELECT ROUND(AVG(price), 2) FROM drug WHERE class{z} = '{class}' AND form{z} = '{form}'",
    ),
    Template(
        "cheapest",
        2,
        ("class", "form"),
        ("Which {class} {form} is the cheapest?", "Name the cheapest {class} drug given as {form}."),
        ("最便宜的{class}{form}是哪种药？", "哪种{form}形式的{class}最便宜？"),
        "SELECT name{z} FROM drug WHERE class{z} = '{class}' AND form{z} = '{form}' ORDER BY price LIMIT 1",
    ),
    Template(
        "count_department",
        2,
        ("department", "severity"),
        (
            "How many diseases of the department {department} have severity {severity}?",
            "Count the {department} diseases of severity {severity}.",
        ),
        ("{department}有多少种严重程度为{severity}级的疾病？", "严重程度为{severity}的{department}疾病有多少种？"),
        "SELECT COUNT(*) FROM disease WHERE department{z} = '{department}' AND severity = {severity}",
    ),
    Template(
        "list_diseases",
        2,
        ("department", "severity"),
        (
            "Which diseases of the department {department} have severity {severity}?",
            "List the {department} diseases of severity {severity}.",
        ),
        ("{department}中严重程度为{severity}级的疾病有哪些？", "列出严重程度为{severity}的{department}疾病。"),
        "SELECT name{z} FROM disease WHERE department{z} = '{department}' AND severity = {severity}",
    ),
    Template(
        "dearest",
        2,
        ("class", "form"),
        ("Which {class} {form} is the most expensive?",),
        ("最贵的{class}{form}是哪种药？",),
        "SELECT name{z} FROM drug WHERE class{z} = '{class}' AND form{z} = '{form}' ORDER BY price DESC LIMIT 1",
        held_out=True,
    ),
    Template(
        "count_class_form",
        2,
        ("class", "form"),
        ("How many {class} drugs have the form {form}?",),
        ("剂型为{form}的{class}有多少种？",),
        "SELECT COUNT(*) FROM drug WHERE class{z} = '{class}' AND form{z} = '{form}'",
        held_out=True,
    ),
    Template(
        "drugs_for",
        3,
        ("disease",),
        ("Which drugs treat {disease}?", "What can be given for {disease}?"),
        ("哪些药物可以治疗{disease}？", "{disease}可以用什么药？"),
        f"SELECT d.name{{z}} FROM indication i {_DRUGS_OF} {_DISEASES_OF} WHERE s.name{{z}} = '{{disease}}'",
    ),
    Template(
        "diseases_of",
        3,
        ("drug",),
        ("Which diseases does {drug} treat?", "What is {drug} given for?"),
        ("{drug}可以治疗哪些疾病？", "{drug}的适应症有哪些？"),
        f"SELECT s.name{{z}} FROM indication i {_DRUGS_OF} {_DISEASES_OF} WHERE d.name{{z}} = '{{drug}}'",
    ),
    Template(
        "symptoms_of",
        3,
        ("disease",),
        ("What are the symptoms of {disease}?", "Which symptoms does {disease} have?"),
        ("{disease}有哪些症状？", "得了{disease}会出现什么症状？"),
        "SELECT p.name{z} FROM disease_symptom x JOIN disease s ON s.id = x.disease_id "
        "JOIN symptom p ON p.id = x.symptom_id WHERE s.name{z} = '{disease}'",
    ),
    Template(
        "contraindications_of",
        3,
        ("drug",),
        ("With which diseases must {drug} not be given?", "What are the contraindications of {drug}?"),
        ("{drug}有哪些禁忌症？", "哪些疾病患者不能使用{drug}？"),
        f"SELECT s.name{{z}} FROM contraindication i {_DRUGS_OF} {_DISEASES_OF} WHERE d.name{{z}} = '{{drug}}'",
    ),
    Template(
        "interactions_of",
        3,
        ("drug",),
        ("Which drugs interact with {drug}?", "With which drugs does {drug} interact?"),
        ("哪些药物与{drug}有相互作用？", "{drug}会与哪些药相互作用？"),
        "SELECT o.name{z} FROM interaction i JOIN drug d ON d.id = i.drug_id JOIN drug o ON o.id = i.other_id "
        "WHERE d.name{z} = '{drug}'",
    ),
    Template(
        "adult_dose",
        3,
        ("drug",),
        ("How many mg of {drug} does an adult get?", "What is the adult dose of {drug} in mg?"),
        ("成人每次服用{drug}多少毫克？", "{drug}的成人剂量是多少毫克？"),
        "SELECT g.mg FROM dosage g JOIN drug d ON d.id = g.drug_id WHERE d.name{z} = '{drug}' "
        "AND g.age_group = 'adult'",
    ),
    Template(
        "child_times",
        3,
        ("drug",),
        ("How many times a day does a child get {drug}?",),
        ("儿童每天服用{drug}几次？",),
        "SELECT g.times_per_day FROM dosage g JOIN drug d ON d.id = g.drug_id WHERE d.name{z} = '{drug}' "
        "AND g.age_group = 'child'",
        held_out=True,
    ),
    Template(
        "first_choice",
        3,
        ("disease",),
        ("Which drugs are the first choice for {disease}?",),
        ("治疗{disease}的首选药物有哪些？",),
        f"SELECT d.name{{z}} FROM indication i {_DRUGS_OF} {_DISEASES_OF} WHERE s.name{{z}} = '{{disease}}' "
        "AND i.line = 1",
        held_out=True,
    ),
    Template(
        "safe_drugs",
        4,
        ("disease", "other_disease"),
        ("Which drugs treat {disease} and may be given to patients with {other_disease}?",),
        ("哪些药物可以治疗{disease}，并且{other_disease}患者也可以使用？",),
        f"SELECT d.name{{z}} FROM indication i {_DRUGS_OF} {_DISEASES_OF} WHERE s.name{{z}} = '{{disease}}' "
        "AND d.id NOT IN (SELECT c.drug_id FROM contraindication c JOIN disease t ON t.id = c.disease_id "
        "WHERE t.name{z} = '{other_disease}')",
    ),
    Template(
        "cheapest_for",
        4,
        ("disease",),
        ("What is the cheapest drug for {disease}?", "Which drug treats {disease} at the lowest price?"),
        ("治疗{disease}最便宜的药是什么？", "哪种药治疗{disease}最便宜？"),
        f"SELECT d.name{{z}} FROM indication i {_DRUGS_OF} {_DISEASES_OF} WHERE s.name{{z}} = '{{disease}}' "
        "ORDER BY d.price LIMIT 1",
    ),
    Template(
        "by_price",
        4,
        ("disease",),
        ("List the drugs for {disease} from the cheapest to the dearest.",),
        ("按价格从低到高列出治疗{disease}的药物。",),
        f"SELECT d.name{{z}} FROM indication i {_DRUGS_OF} {_DISEASES_OF} WHERE s.name{{z}} = '{{disease}}' "
        "ORDER BY d.price",
        ordered=True,
    ),
    Template(
        "both_symptoms",
        4,
        ("symptom", "other_symptom"),
        ("Which diseases have both {symptom} and {other_symptom}?",),
        ("哪些疾病同时有{symptom}和{other_symptom}的症状？",),
        "SELECT s.name{z} FROM disease s WHERE s.id IN (SELECT x.disease_id FROM disease_symptom x JOIN symptom p "
        "ON p.id = x.symptom_id WHERE p.name{z} = '{symptom}') AND s.id IN (SELECT x.disease_id FROM disease_symptom x "
        "JOIN symptom p ON p.id = x.symptom_id WHERE p.name{z} = '{other_symptom}')",
    ),
    Template(
        "count_drugs_for",
        4,
        ("disease", "year"),
        ("How many drugs for {disease} were approved after {year}?",),
        ("{year}年以后批准的治疗{disease}的药物有多少种？",),
        f"SELECT COUNT(*) FROM indication i {_DRUGS_OF} {_DISEASES_OF} WHERE s.name{{z}} = '{{disease}}' "
        "AND d.year > {year}",
    ),
    Template(
        "average_price_symptom",
        4,
        ("symptom",),
        ("What is the average price of the drugs for diseases with {symptom}?",),
        ("治疗有{symptom}症状的疾病的药物平均价格是多少？",),
        "SELECT ROUND(AVG(price), 2) FROM drug WHERE id IN (SELECT i.drug_id FROM indication i JOIN disease_symptom x "
        "ON x.disease_id = i.disease_id JOIN symptom p ON p.id = x.symptom_id WHERE p.name{z} = '{symptom}')",
    ),
    Template(
        "severest_with",
        4,
        ("symptom", "severity"),
        ("Which diseases of severity {severity} have the symptom {symptom}?",),
        ("严重程度为{severity}级且有{symptom}症状的疾病有哪些？",),
        "SELECT s.name{z} FROM disease s JOIN disease_symptom x ON x.disease_id = s.id JOIN symptom p "
        "ON p.id = x.symptom_id WHERE p.name{z} = '{symptom}' AND s.severity = {severity}",
        held_out=True,
    ),
    Template(
        "common_treatment",
        4,
        ("drug", "other_drug"),
        ("How many different diseases are treated by {drug} or {other_drug}?",),
        ("{drug}或{other_drug}一共能治疗多少种不同的疾病？",),
        "SELECT COUNT(DISTINCT i.disease_id) FROM indication i JOIN drug d ON d.id = i.drug_id "
        "WHERE d.name{z} IN ('{drug}', '{other_drug}')",
        held_out=True,
    ),
)
