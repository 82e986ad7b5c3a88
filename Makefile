# make setup      a virtual environment in .venv with everything the demo and the checks need
# make demo       the whole loop on this machine
# make test       the default checks, a few minutes on two cores
# make test-slow  long chaos runs and real vLLM as well
# make lint       formatting, ruff, strict types
# make bench      every benchmark, one JSON file each in runs/bench

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup demo test test-slow lint bench debian clean
.DEFAULT_GOAL := setup

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: insitu needs Python 3.11 or later. Name one: make setup PYTHON=python3.12" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || $(MAKE) --no-print-directory debian
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(STAMP)
	@echo "ready: $(BIN)/insitu doctor"

debian:
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -qq && apt-get install -y -qq python3-venv; \
	else \
		echo "error: Python has no venv module. Run: sudo apt-get install python3-venv" >&2; exit 2; \
	fi

demo: setup
	@$(BIN)/insitu demo

test: setup
	$(BIN)/python -m pytest -m "not slow and not gpu"

test-slow: setup
	$(BIN)/python -m pytest -m "not gpu"

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: setup
	@mkdir -p runs/bench
	@for file in $(filter-out %/__init__.py,$(wildcard benchmarks/[a-z]*.py)); do \
		name=$$(basename $$file .py); \
		$(BIN)/python -m benchmarks.$$name --json runs/bench/$$name.json || exit; \
	done

clean:
	rm -rf $(VENV)
