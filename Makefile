# make demo    everything embedded, nothing to set up: Drill 26 in the terminal (Python >= 3.11 is enough)
# make test    the whole suite, with the servers that it needs
# make chaos   real regions under faults drawn from a seed: SEED=7 plays one again, RUNS=20 SECONDS=60 plays longer,
#              HANDOFFS=14 hands over so often a stage, TALLY=docs/chaos.json adds up; CHAOS="tests/system/test_chaos_steps.py" STEPS=all kills at every step
# make soak    two regions under a steady load for MINUTES, with a handoff each minute: what they take stays flat
# make fuzz    every reader of bytes from outside, within SECONDS in all: readers, both edges, elections, the SDK
# make lint    formatting, style, types, the direction of imports
# make docs    the pages of docs/ as a site in build/docs; a warning is an error
# make bench   the measurements against their peers (Linux, with wrk and nginx); BENCH=--quick takes about two minutes
# make lock    writes requirements.lock anew from pyproject.toml
# make clean   removes .venv and what was built

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# Flags for the demo (make demo DEMO="--naive") and for pytest (make test TESTS=tests/unit).
DEMO ?=
TESTS ?= tests
BENCH ?=
SEED ?= 1
RUNS ?= 1
SECONDS ?= 60
MINUTES ?= 30
PER_STAGE ?= 1
HANDOFFS ?= 1
TALLY ?=
STEPS ?=
CHAOS ?= tests/system/test_chaos.py
OWN_NETWORK = $(shell unshare --net true 2>/dev/null && echo unshare --net)

.PHONY: demo test chaos soak fuzz lint docs bench lock clean

demo: $(VENV)/.installed-embedded
	@$(BIN)/fencegate demo $(DEMO)

# In parallel, each worker with servers of its own: the suite waits for leases more than it computes.
test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal $(TESTS)

# In a network of its own, where that can be had: then the kernel can be told to lose packets too.
chaos: $(VENV)/.installed-dev
	@test -n "$(OWN_NETWORK)" || echo "No network namespace for us here (unshare --net): no packets will be lost by the kernel."
	FENCEGATE_CHAOS_SEED=$(SEED) FENCEGATE_CHAOS_RUNS=$(RUNS) FENCEGATE_CHAOS_SECONDS=$(SECONDS) \
	FENCEGATE_CHAOS_PER_STAGE=$(PER_STAGE) FENCEGATE_CHAOS_TALLY=$(TALLY) FENCEGATE_CHAOS_STEPS=$(STEPS) \
	FENCEGATE_CHAOS_HANDOFFS=$(HANDOFFS) \
	  $(OWN_NETWORK) $(BIN)/python -m pytest -s $(CHAOS)

soak: $(VENV)/.installed-dev
	FENCEGATE_SOAK_MINUTES=$(MINUTES) $(BIN)/python -m pytest -s tests/system/test_soak.py

fuzz: $(VENV)/.installed-dev
	FENCEGATE_FUZZ_SEED=$$(date +%s) FENCEGATE_FUZZ_SECONDS=$(SECONDS) $(BIN)/python -m pytest tests/fuzz

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy fencegate
	$(BIN)/lint-imports

docs: $(VENV)/.installed-dev
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet docs build/docs
	@echo "wrote build/docs/index.html"

bench: $(VENV)/.installed-embedded
	$(BIN)/python -m bench $(BENCH)

# The project itself shows up in its own lock, since an extra names it; it must not, and nor may a path.
lock: $(VENV)/.installed-dev
	$(PIP) install pip-tools
	$(BIN)/pip-compile --quiet --upgrade --extra dev --extra embedded --extra zookeeper --extra etcd3 --extra redis --extra docs --extra otel --extra envoy \
	  --strip-extras --no-header --no-annotate \
	  --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --output-file $(VENV)/compiled.lock pyproject.toml
	@{ echo "# Exact versions, used as constraints (-c) by the Makefile. Written by: make lock"; \
	  grep -v '^fencegate ' $(VENV)/compiled.lock; } > requirements.lock
	@echo "wrote requirements.lock"

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "fencegate needs Python 3.11 or newer, and \"$(PYTHON)\" is" \
	    "$$($(PYTHON) --version 2>/dev/null || echo 'not there'). Name another one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; \
	  exit 1; }
	@echo "making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "No virtual environment could be made. On Debian and Ubuntu: apt-get install python3-venv" >&2; \
	  rm -rf $(VENV); exit 1; }

$(VENV)/.installed-embedded: pyproject.toml requirements.lock | $(BIN)/python
	@echo "installing what the demo needs into $(VENV)"
	@$(PIP) install --editable '.[embedded]' --constraint requirements.lock
	@touch $@

$(VENV)/.installed-dev: pyproject.toml requirements.lock | $(BIN)/python
	@echo "installing what the tests need into $(VENV)"
	@$(PIP) install --editable '.[dev]' --constraint requirements.lock
	@touch $@ $(VENV)/.installed-embedded
