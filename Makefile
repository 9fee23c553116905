# Everything runs in .venv, which is made when it is missing and installed again only when the requirements change.
# The tests of the agent SDKs have environments of their own: crewai and tau2 need older versions than the others. So have
# those of the doors to other packages, of which verifiers needs an older openai.
#   make train ARGS="--model Qwen/Qwen2.5-0.5B-Instruct --output-dir outputs/qwen"

PYTHON ?= python3
VENV ?= .venv
VENV_AGENTS ?= .venv-agents
VENV_CREWAI ?= .venv-crewai
VENV_TAU2 ?= .venv-tau2
VENV_DOORS ?= .venv-doors
VENV_VERIFIERS ?= .venv-verifiers
VENV_MINI ?= .venv-mini
VENV_CLAUDE ?= .venv-claude
VENV_RAY ?= .venv-ray
VENV_OLDEST ?= .venv-oldest
VENV_AUDIT ?= .venv-audit
VENV_DASHBOARD ?= .venv-dashboard
VENV_DOCS ?= .venv-docs
VENV_PHOENIX ?= .venv-phoenix
VENV_LOGGERS ?= .venv-loggers
CHROMIUM ?= $(shell command -v chromium || command -v chromium-browser || command -v google-chrome)
ARGS ?=

BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
INSTALLED_DEV := $(VENV)/.installed-dev
INSTALLED_AGENTS := $(VENV_AGENTS)/.installed
INSTALLED_CREWAI := $(VENV_CREWAI)/.installed
INSTALLED_TAU2 := $(VENV_TAU2)/.installed
INSTALLED_DOORS := $(VENV_DOORS)/.installed
INSTALLED_VERIFIERS := $(VENV_VERIFIERS)/.installed
INSTALLED_MINI := $(VENV_MINI)/.installed
INSTALLED_CLAUDE := $(VENV_CLAUDE)/.installed
INSTALLED_RAY := $(VENV_RAY)/.installed
INSTALLED_OLDEST := $(VENV_OLDEST)/.installed
INSTALLED_AUDIT := $(VENV_AUDIT)/.installed
INSTALLED_DASHBOARD := $(VENV_DASHBOARD)/.installed
INSTALLED_DOCS := $(VENV_DOCS)/.installed
INSTALLED_PHOENIX := $(VENV_PHOENIX)/.installed
INSTALLED_LOGGERS := $(VENV_LOGGERS)/.installed
SDK_TESTS := tests/agents_sdk
DOOR_TESTS := tests/doors
# Its cookbook asks for a renderer of its makers' own models in a version that is not everywhere; no recipe here uses it.
TINKER_PACKAGES := 'tinker>=0.38; python_version >= "3.11"' blobfile chz pylatexenc pyrage termcolor tiktoken tml-renderers
# torch is the one build that constraints.txt names; what test-oldest says holds for every other package.
OLDEST_CONSTRAINTS ?= constraints.txt
# Left out: what needs TRL, which asks for newer versions than ours (datasets 4.7), and the rooms that are not named.
OLDEST_TESTS ?= $(addprefix tests/,adapter attribution calculator cli datasets emitter execution gateway http invariant \
  litagent metrics policy rewards runner store tokens tools tracer trainer) \
  $(addprefix --ignore=tests/,cli/test_cli_post_training.py invariant/test_head_tiles.py)

.DEFAULT_GOAL := train
.PHONY: help train test test-recipes test-integrations test-apps test-embedded test-learning test-agents test-doors test-dashboard \
  test-traces test-loggers test-tau2 \
  test-ray test-vllm test-oldest torture sanitize audit dashboard dashboard-pictures docs docs-serve test-notebooks lint format install clean

help: ## show the targets
	@sed -n 's/^\([a-z0-9-]*\): .*## /\1\t/p' Makefile | expand -t 20

train: $(INSTALLED) ## train the math agent with tools; ARGS are options of mini-agentic-rl train
	$(BIN)/mini-agentic-rl train $(ARGS)

# The tests start many processes, and each would compile the package again where its bytecode may not be kept.
test: export PYTHONDONTWRITEBYTECODE =
test: $(INSTALLED_DEV) ## run the whole test suite; ARGS are those of pytest
	$(BIN)/python -m pytest $(ARGS)

# The tests of the optional parts alone.
test-recipes: $(INSTALLED_DEV) ## run the tests of recipes/
	$(BIN)/python -m pytest tests/recipes $(ARGS)

test-integrations: $(INSTALLED_DEV) ## run the tests of integrations/
	$(BIN)/python -m pytest tests/integrations $(ARGS)

test-apps: $(INSTALLED_DEV) ## run the tests of apps/
	$(BIN)/python -m pytest tests/apps $(ARGS)

# What README and docs/your-agent.md promise of the embedded model, which is fetched if it is not in the cache.
test-embedded: $(INSTALLED_DEV) ## run what README promises of the embedded model
	$(BIN)/python -m pytest -n 0 tests/embedded $(ARGS)

# Every documented agent is trained with three seeds, into a folder whose runs are not repeated; hours on two cores.
test-learning: $(INSTALLED_DEV) ## train every documented agent with three seeds (hours)
	$(BIN)/python benchmarks/learning.py --folder outputs/learning $(ARGS)

test-agents: $(INSTALLED_AGENTS) $(INSTALLED_CREWAI) ## run the examples in other agent SDKs
	$(VENV_AGENTS)/bin/python -m pytest $(SDK_TESTS) --ignore=$(SDK_TESTS)/test_crewai.py $(ARGS)
	$(VENV_CREWAI)/bin/python -m pytest $(SDK_TESTS)/test_crewai.py $(ARGS)

# The doors to other packages, each with the real one: a whole training on a tiny model through each.
# AGENTLIGHTNING_PYTHON, where it is set, is the Python of an environment with agentlightning[mongo]==0.3.0.
test-doors: $(INSTALLED_DOORS) $(INSTALLED_VERIFIERS) ## run environments and clients of other packages, each with the real one
	$(VENV_DOORS)/bin/python -m pytest -n 0 $(DOOR_TESTS) --ignore=$(DOOR_TESTS)/test_verifiers.py $(ARGS)
	$(VENV_VERIFIERS)/bin/python -m pytest -n 0 $(DOOR_TESTS)/test_verifiers.py $(ARGS)

# The pool of samplers over real vLLM servers: VLLM_PYTHON is the Python of an environment that has vLLM.
test-vllm: $(INSTALLED_DEV)
	VLLM_PYTHON=$(VLLM_PYTHON) $(BIN)/python -m pytest -n 0 --timeout 1800 tests/real_vllm $(ARGS)

# Every attack of docs/reliability.md in full, an hour or more; TORTURE_SIZE=0.05 is what `make test` tries of it.
torture: export TORTURE_SIZE ?= 1
torture: $(INSTALLED_DEV) ## run every attack at full size (hours)
	$(BIN)/python -m pytest -n 0 --timeout 7200 tests/torture $(ARGS)

# The C++ under AddressSanitizer and UndefinedBehaviorSanitizer, compiled beforehand: below a preloaded sanitizer g++ hangs.
sanitize: export CXX = dev/sanitizing-g++
sanitize: export MINI_AGENTIC_RL_CACHE = $(abspath $(VENV))/sanitized
sanitize: $(INSTALLED_DEV) ## run the kernels under sanitizers
	$(BIN)/python -c "from mini_agentic_rl.policy.kernels import compiled; compiled._built(compiled._compiler())"
	ASAN_OPTIONS=detect_leaks=0 LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libubsan.so)" \
	  $(BIN)/python -m pytest -n 0 tests/policy/test_kernels.py tests/policy/test_decoder_stack.py -k "not compile" $(ARGS)

# The pages in a real browser, Chromium, which the system has to have; playwright drives it, and axe looks at its pages,
# from an environment of its own.
test-dashboard: export DASHBOARD_PYTHON = $(abspath $(VENV_DASHBOARD))/bin/python
test-dashboard: export DASHBOARD_CHROMIUM = $(CHROMIUM)
test-dashboard: $(INSTALLED_DEV) $(INSTALLED_DASHBOARD) ## run the dashboard in a real browser
	$(BIN)/python -m pytest -n 0 tests/apps/dashboard $(ARGS)

# Traces in a real Phoenix, which is started from an environment of its own and asked over its API.
test-traces: export PHOENIX_PYTHON = $(abspath $(VENV_PHOENIX))/bin/python
test-traces: $(INSTALLED_DEV) $(INSTALLED_PHOENIX) ## send traces to a real Phoenix
	$(BIN)/python -m pytest -n 0 tests/integrations/otlp $(ARGS)

# Each tracking service for real and offline, in an environment that has all of them.
test-loggers: $(INSTALLED_LOGGERS) ## run every tracking service offline
	$(VENV_LOGGERS)/bin/python -m pytest -n 0 tests/metrics tests/integrations/loggers tests/real_loggers $(ARGS)

# What the package ships of the dashboard is built here (Node 20.19 or later) and committed: no install builds anything.
dashboard: ## build the pages of the dashboard (Node)
	cd frontend/dashboard && npm ci && npm run build

# Pictures of docs/dashboard.md, of the run whose folder RUN names.
dashboard-pictures: $(INSTALLED_DEV) $(INSTALLED_DASHBOARD)
	DASHBOARD_CHROMIUM="$(CHROMIUM)" $(VENV_DASHBOARD)/bin/python docs/pictures/dashboard.py $(BIN)/mini-agentic-rl $(RUN)

# The site, in build/site: pages gathered into build/pages, and built with every broken link an error. Needs no network.
docs: export PYTHONPATH = dev
docs: $(INSTALLED_DOCS) ## build the site
	$(VENV_DOCS)/bin/python -m documentation llms
	$(VENV_DOCS)/bin/python -m documentation build/pages
	$(VENV_DOCS)/bin/python -m mkdocs build --strict $(ARGS)

docs-serve: export PYTHONPATH = dev
docs-serve: $(INSTALLED_DOCS)
	$(VENV_DOCS)/bin/python -m documentation build/pages
	$(VENV_DOCS)/bin/python -m mkdocs serve $(ARGS)

# The notebooks in a kernel of Jupyter's, at the size of a test; `make test` runs their cells without one.
test-notebooks: $(INSTALLED_DOCS) ## run the notebooks in a kernel
	$(VENV_DOCS)/bin/python -m pytest -n 0 tests/pages/test_notebooks.py $(ARGS)

test-tau2: $(INSTALLED_TAU2) ## run the tests of tau2
	$(VENV_TAU2)/bin/python -m pytest tests/agents_tau2 $(ARGS)

# Runners and samplers on a Ray cluster of two nodes, which is started on this computer. With VLLM_PYTHON real vLLM too.
test-ray: $(INSTALLED_RAY) ## run on a Ray cluster of two nodes
	$(if $(VLLM_PYTHON),VLLM_PYTHON=$(VLLM_PYTHON)) $(VENV_RAY)/bin/python -m pytest -n 0 tests/ray_cluster $(ARGS)

# Most of the suite, with the oldest version of each requirement that pyproject.toml allows.
test-oldest: $(INSTALLED_OLDEST) ## run most tests with the oldest requirements
	$(VENV_OLDEST)/bin/python -m pytest $(OLDEST_TESTS) $(ARGS)

# Licences of all that is installed (the accepted ones are in pyproject.toml), and known vulnerabilities, for which
# pip-audit asks a service on the network.
audit: $(INSTALLED_DEV) $(INSTALLED_AUDIT) ## check licences and known vulnerabilities
	$(VENV_AUDIT)/bin/pip-licenses --python $(BIN)/python --summary
	$(BIN)/python -m pip freeze --exclude-editable | $(VENV_AUDIT)/bin/pip-audit --no-deps --disable-pip -r /dev/stdin $(ARGS)

lint: $(INSTALLED_DEV) ## check lint, format, types and import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(INSTALLED_DEV) ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

install: $(INSTALLED_DEV) ## install the package for development

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

$(INSTALLED_DOORS): pyproject.toml constraints.txt
	test -x $(VENV_DOORS)/bin/python || $(PYTHON) -m venv $(VENV_DOORS)
	$(VENV_DOORS)/bin/python -m pip install --quiet --no-compile -c constraints.txt -e '.[gymnasium,mongo,openenv,test,trl]'
	$(VENV_DOORS)/bin/python -m pip install --quiet --no-compile $(TINKER_PACKAGES)
	$(VENV_DOORS)/bin/python -m pip install --quiet --no-compile --no-deps 'tinker-cookbook>=0.6.1; python_version >= "3.11"'
	touch $@

$(INSTALLED_VERIFIERS): pyproject.toml constraints.txt
	test -x $(VENV_VERIFIERS)/bin/python || $(PYTHON) -m venv $(VENV_VERIFIERS)
	$(VENV_VERIFIERS)/bin/python -m pip install --quiet --no-compile -c constraints.txt -e '.[test,verifiers]'
	touch $@

$(INSTALLED_RAY): pyproject.toml constraints.txt
	test -x $(VENV_RAY)/bin/python || $(PYTHON) -m venv $(VENV_RAY)
	$(VENV_RAY)/bin/python -m pip install --quiet --no-compile -c constraints.txt -e '.[ray,test]'
	touch $@

# uv takes the oldest versions, which pip cannot; it does not read where pip finds the wheels of this machine.
$(INSTALLED_OLDEST): export UV_FIND_LINKS ?= $(shell $(PYTHON) -m pip config list 2>/dev/null | sed -n "s/^global.find.links='\(.*\)'/\1/p")
$(INSTALLED_OLDEST): pyproject.toml $(OLDEST_CONSTRAINTS)
	test -x $(VENV_OLDEST)/bin/python || $(PYTHON) -m venv $(VENV_OLDEST)
	$(VENV_OLDEST)/bin/python -m pip install --quiet uv
	$(VENV_OLDEST)/bin/uv pip install --quiet --python $(VENV_OLDEST)/bin/python --resolution lowest-direct \
	  -c $(OLDEST_CONSTRAINTS) -e '.[gaia,mongo,otlp,postgres,reasoning,test]' 'anthropic>=2.0' 'sqlglot>=27' \
	  'SecantusDB>=0.7.0b2; python_version < "3.14"' 'tensorboard>=2.18'
	touch $@

$(INSTALLED_AUDIT):
	test -x $(VENV_AUDIT)/bin/python || $(PYTHON) -m venv $(VENV_AUDIT)
	$(VENV_AUDIT)/bin/python -m pip install --quiet pip-audit pip-licenses
	touch $@

$(INSTALLED_DASHBOARD):
	test -x $(VENV_DASHBOARD)/bin/python || $(PYTHON) -m venv $(VENV_DASHBOARD)
	$(VENV_DASHBOARD)/bin/python -m pip install --quiet playwright axe-playwright-python
	touch $@

$(INSTALLED_DOCS): pyproject.toml constraints.txt
	test -x $(VENV_DOCS)/bin/python || $(PYTHON) -m venv $(VENV_DOCS)
	$(VENV_DOCS)/bin/python -m pip install --quiet --no-compile -c constraints.txt -e '.[docs,test]'
	touch $@

$(INSTALLED_PHOENIX):
	test -x $(VENV_PHOENIX)/bin/python || $(PYTHON) -m venv $(VENV_PHOENIX)
	$(VENV_PHOENIX)/bin/python -m pip install --quiet --no-compile arize-phoenix
	touch $@

$(INSTALLED_LOGGERS): pyproject.toml constraints.txt
	test -x $(VENV_LOGGERS)/bin/python || $(PYTHON) -m venv $(VENV_LOGGERS)
	$(VENV_LOGGERS)/bin/python -m pip install --quiet --no-compile -c constraints.txt -e '.[loggers,test]'
	touch $@

# Programs that others wrote, as agents, at the versions that docs/harnesses.md names.
test-doors: export DOORS_MINI = $(abspath $(VENV_MINI))/bin/mini
test-doors: export DOORS_CLAUDE = $(abspath $(VENV_CLAUDE))/node_modules/.bin/claude
test-doors: $(INSTALLED_MINI) $(INSTALLED_CLAUDE)

$(INSTALLED_MINI):
	test -x $(VENV_MINI)/bin/python || $(PYTHON) -m venv $(VENV_MINI)
	$(VENV_MINI)/bin/python -m pip install --quiet mini-swe-agent==2.4.6 mcp
	touch $@

# Without npm its test is skipped, which it says.
$(INSTALLED_CLAUDE):
	if command -v npm; then \
	  npm install --silent --prefix $(VENV_CLAUDE) @anthropic-ai/claude-code@2.1.197 && \
	  (cd $(VENV_CLAUDE)/node_modules/@anthropic-ai/claude-code && node install.cjs) && touch $@; fi

# Trained runs in outputs/ stay.
clean:
	rm -rf $(VENV) $(VENV_AGENTS) $(VENV_CREWAI) $(VENV_TAU2) $(VENV_DOORS) $(VENV_VERIFIERS) $(VENV_MINI) \
	  $(VENV_CLAUDE) $(VENV_RAY) $(VENV_OLDEST) $(VENV_AUDIT) $(VENV_DASHBOARD) $(VENV_PHOENIX) $(VENV_LOGGERS) \
	  $(VENV_DOCS) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage
	rm -rf src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
