PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test torture lint docs setup clean

demo: setup
	@$(BIN)/pwoa demo

test: setup # in as many processes as there are cores, up to four, with a thread each
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 4

torture: setup
	$(BIN)/python -m tests.torture.inputs
	$(BIN)/python -m tests.torture.readers
	$(BIN)/python -m tests.torture.faults
	$(BIN)/python -m tests.torture.kills

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: setup
	$(BIN)/zensical build --strict --clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) runs site build dist .mypy_cache .pytest_cache .ruff_cache
