# `make` lists the commands. Everything is set up on the way: nothing is assumed but make, bash,
# a C linker, Python 3.11 or later, and a network.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
PEERS := .venv-peers
BIN := $(VENV)/bin
export PATH := $(HOME)/.cargo/bin:$(PATH)

# What the installed package is made of: a change in any of these means installing again.
SOURCES := $(shell find crates python -name '*.rs' -o -name '*.py' -o -name '*.pyi' -o -name Cargo.toml) \
	Cargo.toml Cargo.lock pyproject.toml

# Tests of calls and values on a few nodes, without failures, Ray and measured times.
QUICK := $(patsubst %,tests/test_%.py,aio bad_input cli create errors get ids imports interrupt lost reading reduce values)

.PHONY: help
help: ## List the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

.PHONY: demo
demo: $(VENV)/installed ## Broadcast, reduce and train on a 4-node local cluster; FILE=path broadcasts that file
	$(BIN)/python -m examples.demo $(if $(FILE),--file '$(FILE)')

.PHONY: test
test: lint test-rust ## Run every check and every test; what CI runs
	+$(MAKE) --no-print-directory --jobs=2 test-nodes test-ray-nodes

# Side by side: most of these tests wait for nodes and clocks.
.PHONY: test-nodes test-ray-nodes
test-nodes: $(VENV)/installed
	$(BIN)/python -m pytest --ignore-glob='*/test_ray_*.py' -p no:cacheprovider
test-ray-nodes: $(VENV)/installed
	$(BIN)/python -m pytest tests/test_ray_*.py -p no:cacheprovider

.PHONY: check
check: lint ## The daily check, in minutes: lints, types, and the tests of the decisions and of single calls
	cargo test --package hoplite-core --package hoplite-sim --package hoplite-types --package hoplite-wire --package hoplite-client
	$(BIN)/python -m pytest $(QUICK)

.PHONY: lint
lint: $(VENV)/installed ## Formatting, lints and types, without tests
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	$(BIN)/ruff format --check python tests examples lab crates
	$(BIN)/ruff check python tests examples lab crates
	$(BIN)/mypy python/hoplite examples lab crates/hoplite-sim/bugs
	$(BIN)/python crates/hoplite-sim/bugs/planted.py --check-page
	cd $(VENV) && bin/stubtest hoplite._hoplite

.PHONY: test-rust
test-rust: system ## Test the Rust crates
	cargo test --workspace --exclude hoplite-python

.PHONY: test-python
test-python: $(VENV)/installed ## Test the Python package on real nodes; ARGS= goes to pytest
	$(BIN)/python -m pytest $(ARGS)

.PHONY: test-torch
test-torch: $(VENV)/torch ## Test what takes PyTorch's tensors: installs PyTorch, which is gigabytes; ARGS= goes to pytest
	$(BIN)/python -m pytest -m torch $(ARGS)

.PHONY: test-ray
test-ray: $(VENV)/installed ## Test hoplite.ray on three Ray nodes, more than CI does, with all applications; ARGS= goes to pytest
	$(BIN)/python -m pytest tests/test_ray_*.py tests/examples_ray.py -m '' $(ARGS)

.PHONY: soak-ray
soak-ray: $(VENV)/installed ## Send 20,000 objects (OBJECTS=) through three Ray nodes: nothing may be left, and memory must be flat
	PYTHONPATH=tests $(BIN)/python -m soak_ray --objects $(or $(OBJECTS),20000)

.PHONY: chaos-ray
chaos-ray: $(VENV)/installed ## Break a Ray cluster under checked graphs of tasks and actors; MINUTES=, SEED=
	PYTHONPATH=tests $(BIN)/python -m chaos_ray $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED))

.PHONY: test-ray-upstream
test-ray-upstream: $(VENV)/installed ## Run Ray's own tests alone and with Hoplite; FOLDER= Ray's python/ray/tests, ONLY=
	PYTHONPATH=tests $(BIN)/python -m ray_upstream $(FOLDER) --only '$(or $(ONLY),*)'

.PHONY: simulate
simulate: system ## Run seeded whole-cluster simulations of the core; SEEDS=count, SEED=first, FAULTS=classes
	cargo run --profile simulate --package hoplite-sim -- --seed $(or $(SEED),0) --seeds $(or $(SEEDS),1000) --faults=$(or $(FAULTS),all)

.PHONY: planted-bugs
planted-bugs: system ## Plant known bugs, one at a time, and let the simulation find each; ONLY=
	$(PYTHON) crates/hoplite-sim/bugs/planted.py $(if $(ONLY),--only $(ONLY))

.PHONY: planted-bugs-page
planted-bugs-page: ## Make docs/planted-bugs.md from the heads of the patches and the last recorded run
	$(PYTHON) crates/hoplite-sim/bugs/planted.py --page

.PHONY: lab
lab: $(VENV)/installed ## List the benchmarks; BENCH=name runs one, BENCH=all every one (as root)
	$(BIN)/python -m lab $(BENCH)

.PHONY: peers
peers: $(PEERS)/installed ## Install what the benchmarks compare with: Debian's, and pip's in an environment of its own
	@.ci/peers.sh

.PHONY: page
page: $(VENV)/installed ## Make docs/benchmarks.md and its figures from what the benchmarks left
	$(BIN)/python -m lab.page

.PHONY: chaos
chaos: $(VENV)/installed ## Break nodes and links under a checked workload (as root); MINUTES=, SEED=, HOSTS=
	$(BIN)/python -m lab.chaos --minutes $(or $(MINUTES),5) $(if $(SEED),--seed $(SEED)) $(if $(HOSTS),--hosts $(HOSTS))

.PHONY: build
build: system ## Build the daemon alone: target/release/hoplited
	cargo build --release --package hoplite-node

.PHONY: fmt
fmt: $(VENV)/tools ## Format everything
	cargo fmt --all
	$(BIN)/ruff format python tests examples lab crates
	$(BIN)/ruff check --fix python tests examples lab crates

.PHONY: clean
clean: ## Remove what was built and installed here
	rm -rf $(VENV) $(PEERS) target build python/*.egg-info

# Only what is missing is installed; on a machine that has everything this does nothing.
.PHONY: system
system:
	@.ci/system.sh

$(VENV)/tools: pyproject.toml | system
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python .ci/requirements.py > $(VENV)/requirements.txt
	$(BIN)/python -m pip install --quiet --requirement $(VENV)/requirements.txt
	touch $@

# setuptools' folder goes first: it keeps modules that were renamed or removed, and installs them again.
$(VENV)/installed: $(VENV)/tools $(SOURCES) | system
	rm -rf build
	$(BIN)/python -m pip install --quiet --no-build-isolation --no-deps --force-reinstall .
	touch $@

$(VENV)/torch: $(VENV)/installed
	$(BIN)/python -m pip install --quiet 'torch>=2.4'
	touch $@

$(PEERS)/installed: lab/systems/requirements.txt | system
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --upgrade pip
	$(PEERS)/bin/python -m pip install --quiet --requirement lab/systems/requirements.txt
	touch $@
