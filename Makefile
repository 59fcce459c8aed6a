# Everything a fresh machine needs: Python 3.11 or newer, and pip.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 3
PG_BIN ?= /usr/lib/postgresql/15/bin
STOCK ?= tests/client tests/tenants $(addprefix tests/engine/test_,enqueue.py claim.py settle.py)
SEED ?= 0
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --hypothesis-seed=$(SEED)
ALWAYS := not soak and not ray
RAY_VENV ?= $(HOME)/.cache/holdfast/ray-venv

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*##  *\(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 10

.PHONY: stock help setup programs demo test test-all checked fast slow oldest lint types docs soak ray bench clean

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

test: setup  ## style, types and the fast tier: every test that is not marked slow, the same ones every day; SEED=7 varies the values of property tests
	@$(MAKE) --no-print-directory --jobs=2 checked fast

test-all: test  ## everything: make test, then the tests that are marked slow
	@$(MAKE) --no-print-directory slow

checked: lint types

fast: setup
	@$(PYTEST) -m 'not slow and $(ALWAYS)'

slow: setup  ## the slow tier alone
	@$(PYTEST) -m 'slow and $(ALWAYS)'

oldest: setup  ## the fast tier on the oldest supported PostgreSQL, 15; PG_BIN says where its programs are
	@HOLDFAST_PG_BIN=$(PG_BIN) $(PYTEST) -m 'not slow and $(ALWAYS)'

stock: setup  ## clients, tenants and the hot path on PostgreSQL 15 with default settings, as an ordinary role
	@$(BIN)/python tools/stock_server.py $(PG_BIN) $(PYTEST) $(STOCK)

lint: setup
	@$(BIN)/ruff check src bench tests examples tools
	@$(BIN)/ruff format --check src bench tests examples tools

types: setup
	@$(BIN)/mypy

docs: setup  ## build the reference pages into docs/reference
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
