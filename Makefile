# Each goal sets everything up by itself in .venv; nothing else has to be installed by hand.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: demo test lint bench bench-billion clean
.DELETE_ON_ERROR:

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[test,bench]"
	touch $@

demo: $(READY)
	rm -rf demo
	$(BIN)/ecgl generate sbm demo/demo.ecgl --nodes 20000 --classes 10 --features 64 --signal 2 --homophily 0.6 --seed 0
	$(BIN)/ecgl info demo/demo.ecgl
	cd demo && ../$(BIN)/ecgl plan ../configs/demo.yaml
	cd demo && ../$(BIN)/ecgl run ../configs/demo.yaml --out finetune --set method=finetune --set cache=tasks
	cd demo && ../$(BIN)/ecgl run ../configs/demo.yaml --out joint --set method=joint --set cache=tasks
	cd demo && ../$(BIN)/ecgl run ../configs/demo.yaml --out ecgl --set cache=tasks
	cd demo && ../$(BIN)/ecgl run ../configs/demo.yaml --out analytic --set method=analytic --set cache=tasks
	$(BIN)/ecgl report demo/finetune demo/ecgl demo/analytic demo/joint --html demo/report.html

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist worksteal

bench: $(READY)
	$(BIN)/python -m bench

# About a quarter of an hour on two cores, and 40 GB of disk below bench/work, which are given back.
bench-billion: $(READY)
	$(BIN)/python -m bench.billion

clean:
	rm -rf $(VENV) demo bench/work .pytest_cache .mypy_cache .ruff_cache
