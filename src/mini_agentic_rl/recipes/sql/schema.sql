CREATE TABLE meta (  -- Synthetic data, made by a random generator. Every drug, disease and figure is invented. This is no medical advice. 合成数据，由随机生成器生成；所有药品、疾病和数值均为虚构，不构成任何医疗建议。
  key TEXT PRIMARY KEY,
  value TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE drug (  -- invented drugs 虚构药品
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL UNIQUE,
  name_zh TEXT NOT NULL UNIQUE,
  class TEXT NOT NULL,
  class_zh TEXT NOT NULL,
  form TEXT NOT NULL,  -- how it is given 剂型
  form_zh TEXT NOT NULL,
  price REAL NOT NULL,  -- of one pack 每盒价格
  year INTEGER NOT NULL  -- of approval 批准年份
);
CREATE TABLE disease (  -- invented diseases 虚构疾病
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL UNIQUE,
  name_zh TEXT NOT NULL UNIQUE,
  department TEXT NOT NULL,
  department_zh TEXT NOT NULL,
  severity INTEGER NOT NULL  -- 1 (mild 轻) to 5 (grave 重)
);
CREATE TABLE symptom (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL UNIQUE,
  name_zh TEXT NOT NULL UNIQUE
);
CREATE TABLE disease_symptom (
  disease_id INTEGER NOT NULL REFERENCES disease(id),
  symptom_id INTEGER NOT NULL REFERENCES symptom(id),
  PRIMARY KEY (disease_id, symptom_id)
) WITHOUT ROWID;
CREATE TABLE indication (  -- what a drug is given for 适应症
  drug_id INTEGER NOT NULL REFERENCES drug(id),
  disease_id INTEGER NOT NULL REFERENCES disease(id),
  line INTEGER NOT NULL,  -- 1 first choice 首选, 2, 3
  PRIMARY KEY (drug_id, disease_id)
) WITHOUT ROWID;
CREATE TABLE contraindication (  -- what a drug must not be given with 禁忌症
  drug_id INTEGER NOT NULL REFERENCES drug(id),
  disease_id INTEGER NOT NULL REFERENCES disease(id),
  PRIMARY KEY (drug_id, disease_id)
) WITHOUT ROWID;
CREATE TABLE interaction (  -- both directions are there 药物相互作用
  drug_id INTEGER NOT NULL REFERENCES drug(id),
  other_id INTEGER NOT NULL REFERENCES drug(id),
  severity INTEGER NOT NULL,  -- 1 to 3
  PRIMARY KEY (drug_id, other_id)
) WITHOUT ROWID;
CREATE TABLE dosage (
  drug_id INTEGER NOT NULL REFERENCES drug(id),
  age_group TEXT NOT NULL,  -- child, adult, elderly
  mg REAL NOT NULL,
  times_per_day INTEGER NOT NULL,
  PRIMARY KEY (drug_id, age_group)
) WITHOUT ROWID;
CREATE INDEX indication_disease ON indication(disease_id);
CREATE INDEX contraindication_disease ON contraindication(disease_id);
CREATE INDEX disease_symptom_symptom ON disease_symptom(symptom_id);
