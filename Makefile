# Every target makes its own virtual environment first, so each works on a fresh checkout.
#
# The distribution's own Python comes first where it will do: it is mostly built with profile-guided optimisation,
# which serves a third more requests than one compiled without. `make PYTHON=...` takes another.
PYTHON ?= $(shell for p in /usr/bin/python3 python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import ensurepip, sqlite3, ssl, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: demo test test-slow bench docs-console lint clean

$(STAMP): pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer, with venv, is needed; name it: make PYTHON=..." >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

demo: $(STAMP)
	$(BIN)/llmgw demo --once
	$(BIN)/llmgw demo --cluster

test: lint
	$(BIN)/python -m pytest

test-slow: $(STAMP)
	$(BIN)/python -m pytest -m slow
	HYPOTHESIS_PROFILE=search $(BIN)/python -m pytest tests/core tests/wire tests/sim tests/config tests/engines

bench: $(STAMP)
	$(BIN)/python bench/links.py
	$(BIN)/python bench/cluster.py
	$(BIN)/python bench/terminal.py
	$(BIN)/python bench/run.py

# The screens in docs/console.md and docs/screens, from a cluster of simulated GPUs; needs tmux.
docs-console: $(STAMP)
	$(BIN)/python -m docs.capture

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis bench/.work
