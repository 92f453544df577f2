# make demo    train two small models on real data, watch them, check the forecasts
# make test    every check, on the installed package
# make bench   what scaledl costs: import time and overhead (about 15 minutes)
#
# Each target does all its own set-up in $(VENV). PYTHON=... picks the interpreter.

PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGS ?=
BENCH_ARGS ?=

ROOT := $(CURDIR)
# absolute without resolving links: the venv's python is a link to the one it was made from
ENV := $(abspath $(VENV))
BIN := $(ENV)/bin
CODE := scaledl_hook predictor tests examples benchmarks docs
# folders are in the list too: their time changes when a file is taken away
SOURCES := $(shell find scaledl_hook predictor -not -path '*/__pycache__*' -not -name '*.pyc')
# one thread a process: the machines that run this are small, and runs repeat better
export OMP_NUM_THREADS ?= 1

.PHONY: help setup demo test lint pytest bench clean

help:
	@sed -n 's/^# make/make/p' Makefile

$(ENV)/.requirements: requirements/ci.txt setup.cfg
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "scaledl needs Python 3.11 or newer, but '$(PYTHON)' is $$($(PYTHON) --version 2>&1)." >&2; \
	  echo "Name another one: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(ENV)
	$(BIN)/python -m pip install -qq --requirement requirements/ci.txt
	$(BIN)/python -m pip install -qq --constraint requirements/ci.txt '.[dev]'
	@touch $@

# build/ is removed first: a file that was taken away would live on in the next wheel
$(ENV)/.installed: $(ENV)/.requirements pyproject.toml $(SOURCES)
	rm -rf build
	$(BIN)/python -m pip install -qq --no-deps --no-build-isolation --force-reinstall .
	rm -rf build
	@touch $@

setup: $(ENV)/.installed

demo: setup
	$(BIN)/python examples/demo/demo.py

test: lint pytest

# From $(ENV), where neither source folder can be imported: what is checked is what users get.
lint: setup
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/codespell $(CODE) .ci Makefile setup.cfg pyproject.toml $(wildcard *.md)
	cd $(ENV) && $(BIN)/mypy --config-file $(ROOT)/pyproject.toml --strict -p scaledl
	cd $(ENV) && $(BIN)/lint-imports --no-logo --no-cache $(ROOT)/pyproject.toml

pytest: setup
	cd $(ENV) && $(BIN)/pytest -c $(ROOT)/pyproject.toml --rootdir $(ROOT) $(ROOT)/tests $(PYTEST_ARGS)

bench: setup
	$(BIN)/python benchmarks/import_time.py $(BENCH_ARGS)
	$(BIN)/python benchmarks/overhead.py $(BENCH_ARGS)

clean:
	rm -rf build dist scaledl.egg-info $(VENV)
