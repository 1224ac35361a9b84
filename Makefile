# Each goal sets everything up by itself in .venv; nothing else has to be installed by hand.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: demo test lint bench clean
.DELETE_ON_ERROR:

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[test,bench]"
	touch $@

demo: $(READY)
	rm -rf demo
	$(BIN)/ecgl generate sbm demo/graph.ecgl --nodes 20000 --classes 10 --features 64 --seed 0
	$(BIN)/ecgl verify demo/graph.ecgl
	$(BIN)/ecgl info demo/graph.ecgl
	$(BIN)/ecgl rank demo/graph.ecgl --out demo/scores.parquet --kind both

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest

bench: $(READY)
	$(BIN)/python -m bench

clean:
	rm -rf $(VENV) demo bench/work .pytest_cache .mypy_cache .ruff_cache
