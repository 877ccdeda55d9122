# Two commands do everything on a fresh machine with Python 3.10+, pip and git:
#   make run    the environment, then a real training run on this machine
#   make test   what the tests need, then all of them
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
ARGS   ?=
# Each worker has a lab of its own; who has nothing left to do takes over tests of the other.
# What fails is run again, and shown in the summary: there is a race in it, to be mended.
BESIDE := --numprocesses 2 --dist worksteal --reruns 2

.PHONY: help run test check unit lab bench chaos clean system
.DEFAULT_GOAL := help

help:  ## what there is
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-7s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(VENV)/.run  ## train ResNet-18 on this machine (ARGS="task.args.epochs=2" overrides)
	$(BIN)/python -m runner $(ARGS)

test: check system  ## checks and all tests
	$(BIN)/python -m pytest $(BESIDE) $(ARGS)

check: $(VENV)/.test  ## ruff, mypy, import rooms, Python 3.8 of what travels
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/vermin --quiet --no-tips --violations --target=3.8- --eval-annotations runner/core runner/host

unit: $(VENV)/.test  ## the fast tests only
	$(BIN)/python -m pytest tests/unit tests/golden $(ARGS)

lab: $(VENV)/.test system  ## the tests on real hosts only
	$(BIN)/python -m pytest $(BESIDE) tests/lab $(ARGS)

bench: $(VENV)/.test system  ## launch, check, deploy, logs, ends, relaunch and cost, against ssh, rsync, tar and torchrun
	$(BIN)/python -m benchmarks.launch $(ARGS)
	$(BIN)/python -m benchmarks.check
	$(BIN)/python -m benchmarks.deploy
	$(BIN)/python -m benchmarks.logs
	$(BIN)/python -m benchmarks.ends
	$(BIN)/python -m benchmarks.relaunch
	$(BIN)/python -m benchmarks.cost

chaos: $(VENV)/.test system  ## 1,000 random kills, cuts and power failures of runs on real hosts
	$(BIN)/python -m tests.lab.chaos --events 1000 $(ARGS)

clean:  ## remove the environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache

$(VENV)/.run: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/.test: $(VENV)/.run constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt $$(.ci/group test check)
	@touch $@

system:
	.ci/system
