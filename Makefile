# Everything runs in .venv, which is made when it is missing and installed again only when the requirements change.
# The tests of the agent SDKs have environments of their own: crewai and tau2 need older versions than the others.
#   make train ARGS="--model Qwen/Qwen2.5-0.5B-Instruct --output-dir outputs/qwen"

PYTHON ?= python3
VENV ?= .venv
VENV_AGENTS ?= .venv-agents
VENV_CREWAI ?= .venv-crewai
VENV_TAU2 ?= .venv-tau2
ARGS ?=

BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
INSTALLED_DEV := $(VENV)/.installed-dev
INSTALLED_AGENTS := $(VENV_AGENTS)/.installed
INSTALLED_CREWAI := $(VENV_CREWAI)/.installed
INSTALLED_TAU2 := $(VENV_TAU2)/.installed
SDK_TESTS := tests/agents_sdk

.PHONY: train test test-agents test-tau2 lint format install clean

train: $(INSTALLED)
	$(BIN)/mini-agentic-rl train $(ARGS)

# The tests start many processes, and each would compile the package again where its bytecode may not be kept.
test: export PYTHONDONTWRITEBYTECODE =
test: $(INSTALLED_DEV)
	$(BIN)/python -m pytest $(ARGS)

test-agents: $(INSTALLED_AGENTS) $(INSTALLED_CREWAI)
	$(VENV_AGENTS)/bin/python -m pytest $(SDK_TESTS) --ignore=$(SDK_TESTS)/test_crewai.py $(ARGS)
	$(VENV_CREWAI)/bin/python -m pytest $(SDK_TESTS)/test_crewai.py $(ARGS)

test-tau2: $(INSTALLED_TAU2)
	$(VENV_TAU2)/bin/python -m pytest tests/agents_tau2 $(ARGS)

lint: $(INSTALLED_DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(INSTALLED_DEV)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

install: $(INSTALLED_DEV)

# Training needs none of the tools that checking and testing need.
$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e .
	touch $@

$(INSTALLED_DEV): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $(INSTALLED) $@

$(INSTALLED_AGENTS): pyproject.toml constraints.txt
	test -x $(VENV_AGENTS)/bin/python || $(PYTHON) -m venv $(VENV_AGENTS)
	$(VENV_AGENTS)/bin/python -m pip install --quiet --no-compile -c constraints.txt -e '.[agents,test]'
	touch $@

$(INSTALLED_CREWAI): pyproject.toml constraints.txt
	test -x $(VENV_CREWAI)/bin/python || $(PYTHON) -m venv $(VENV_CREWAI)
	$(VENV_CREWAI)/bin/python -m pip install --quiet --no-compile -c constraints.txt -e '.[crewai,test]'
	touch $@

$(INSTALLED_TAU2): pyproject.toml constraints.txt
	test -x $(VENV_TAU2)/bin/python || $(PYTHON) -m venv $(VENV_TAU2)
	$(VENV_TAU2)/bin/python -m pip install --quiet --no-compile -c constraints.txt -e '.[tau2,test]'
	touch $@

# Trained runs in outputs/ stay.
clean:
	rm -rf $(VENV) $(VENV_AGENTS) $(VENV_CREWAI) $(VENV_TAU2) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage
	rm -rf src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
