# `make sweep` tunes this machine, `make test` runs every test that needs no GPU; both set up .venv first.

PYTHON ?= .venv/bin/python
BASE_PYTHON ?= python3
# Test processes at a time.
WORKERS ?= 2

.PHONY: sweep test test-gpu lint catalog clean
.DEFAULT_GOAL := test

.venv: .venv/installed
.venv/installed: pyproject.toml constraints.txt
	@$(BASE_PYTHON) -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null || { \
	    echo "make: $(BASE_PYTHON) is no Python 3.11, 3.12 or 3.13 with venv; name one: make $(MAKECMDGOALS) BASE_PYTHON=python3.11" >&2; \
	    exit 2; }
	@echo "Building .venv with $$($(BASE_PYTHON) --version); the first time takes some minutes"
	$(BASE_PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet --upgrade pip
	.venv/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch .venv/installed

# The environment is built only where the project's own interpreter is used.
ifeq ($(PYTHON),.venv/bin/python)
SETUP := .venv
endif

sweep: $(SETUP)
	$(PYTHON) -m tunedex sweep --preset quick

test: $(SETUP) lint
	$(PYTHON) -m pytest -m 'not gpu' --numprocesses $(WORKERS) --dist worksteal

test-gpu: $(SETUP)
	$(PYTHON) -m pytest -m gpu tests/gpu

lint: $(SETUP)
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy

# The signatures of the built-in kernels as data, for whoever has no kernel code.
catalog: $(SETUP)
	$(PYTHON) -m tunedex.kernels.catalog

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache
