# Everything runs in .venv, which is made when it is missing and installed again only when the requirements change.
#   make train ARGS="--model Qwen/Qwen2.5-0.5B-Instruct --output-dir outputs/qwen"

PYTHON ?= python3
VENV ?= .venv
ARGS ?=

BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
INSTALLED_DEV := $(VENV)/.installed-dev

.PHONY: train test lint format install clean

train: $(INSTALLED)
	$(BIN)/mini-agentic-rl train $(ARGS)

test: $(INSTALLED_DEV)
	$(BIN)/python -m pytest $(ARGS)

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

# Trained runs in outputs/ stay.
clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage
	rm -rf src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
