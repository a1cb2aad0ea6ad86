# Every verb sets up what it needs: `make demo` or `make test` may be the first command in a fresh clone.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin

.PHONY: setup check test bench demo docs clean
setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "askew needs Python 3.11 or newer: make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[fit,dev]'
	touch $@

check: setup  ## style, types, and pages that are generated
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python docs/make_cli_page.py --check
	$(BIN)/python docs/make_results_page.py --check

test: setup  ## the whole suite
	$(BIN)/python -m pytest -n 2

bench: setup  ## the engine's figures, as ratios within one run
	$(BIN)/python benchmarks/engine.py

demo: setup  ## the whole product on the data in the package
	$(BIN)/askew demo

docs: setup  ## write the pages that are generated
	$(BIN)/python docs/make_cli_page.py
	$(BIN)/python docs/make_results_page.py

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
