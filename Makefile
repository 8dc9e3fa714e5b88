# Two commands do it all on a fresh machine with Python >= 3.11: `make run` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help run test test-nightly lint fmt typecheck bench bench-api lock clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

$(VENV)/.stamp: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "DTQ needs Python 3.11 or newer, found " + sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

run: $(VENV)/.stamp ## Start everything on this machine: engine, API, scheduler, two workers with the demo tasks
	@exec $(BIN)/dtq up

test: lint typecheck ## Run linters, type checks and every test
	$(BIN)/python -m pytest -n 3 --dist worksteal

test-nightly: $(VENV)/.stamp ## The same tests in their long variants
	$(BIN)/python -m pytest -n 3 --dist worksteal --nightly

lint: $(VENV)/.stamp ## Linters only
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

typecheck: $(VENV)/.stamp ## Type checks only
	$(BIN)/mypy

fmt: $(VENV)/.stamp ## Format and fix what can be fixed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.stamp ## Measure DTQ against the bare loops, as ratios in one run
	$(BIN)/python -m benchmarks

bench-api: $(VENV)/.stamp ## Measure the HTTP service against a bare one, as ratios in one run
	$(BIN)/python -m benchmarks.api

lock: ## Renew requirements.lock (needs uv)
	uv pip compile --quiet --generate-hashes --no-emit-index-url --no-annotate --no-header \
	  --python-version 3.11 --universal --extra dev pyproject.toml -o requirements.lock

clean: ## Remove the virtualenv and the local state
	rm -rf $(VENV) .dtq
