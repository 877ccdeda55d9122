# Two commands do everything on a fresh machine with Python 3.10+, pip and git:
#   make run    the environment, then a real training run on this machine
#   make test   what the tests need, then every promise once
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
ARGS   ?=
# Each worker has a lab of its own, and an idle worker takes tests from the others. A test that
# fails once has failed: nothing is run again.
PYTEST := $(BIN)/python -m pytest --numprocesses 3 --dist worksteal
ONCE   := not all and (smoke or not (slurm or containers or tasks or chaos))

# Where it is set (some images do), each of the suite's thousand controllers would compile all it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help run test test-all check unit lab slurm containers tasks chaos gpu bench clean system
.DEFAULT_GOAL := help

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(VENV)/.run  ## train ResNet-18 on this machine (ARGS="task.args.epochs=2" overrides)
	$(BIN)/python -m runner $(ARGS)
	@printf '\nnext, for machines and a program of yours, in your project:\n'
	@printf '  %s init\n' '$(abspath $(BIN))/runner'

test: check system  ## checks, and every promise and documented behaviour once
	$(PYTEST) -m "$(ONCE)" $(ARGS)

test-all: check system $(VENV)/.libraries  ## checks, and all tests: all combinations, Slurm, containers, trainings, chaos
	$(PYTEST) $(ARGS)

slurm: $(VENV)/.test system  ## tests on Slurm's own daemons
	$(PYTEST) -m slurm $(ARGS)

containers: $(VENV)/.test system  ## tests with docker and podman
	$(PYTEST) -m containers $(ARGS)

tasks: $(VENV)/.test system  ## trainings of the shipped tasks, preload, and libraries on top of torch
	$(PYTEST) -m tasks $(ARGS)

check: $(VENV)/.test  ## ruff, mypy, import rules, rules of style, Python 3.8 of the code for hosts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo
	.ci/style
	$(BIN)/vermin --quiet --no-tips --violations --target=3.8- --eval-annotations runner/core/wire runner/host

unit: $(VENV)/.test  ## the fast tests only
	$(BIN)/python -m pytest tests/unit tests/golden $(ARGS)

lab: $(VENV)/.test system  ## make test's tests on real hosts only (ARGS="tests/lab/test_stop.py -k ctrl_c" for one)
	$(PYTEST) -m "$(ONCE)" $(if $(filter tests/%,$(ARGS)),,tests/lab) $(ARGS)

gpu: $(VENV)/.test  ## what needs NVIDIA GPUs; see CONTRIBUTING.md
	$(BIN)/python -m pytest -v -p no:randomly --tb=short tests/gpu $(ARGS)

bench: $(VENV)/.test system  ## launch, check, deploy, logs, ends, relaunch, cost and report, against ssh, rsync, tar and torchrun
	$(BIN)/python -m benchmarks.launch $(ARGS)
	$(BIN)/python -m benchmarks.verbs check
	$(BIN)/python -m benchmarks.verbs exec --hosts 16 64
	$(BIN)/python -m benchmarks.host_start
	$(BIN)/python -m benchmarks.many_hosts
	$(BIN)/python -m benchmarks.deploy
	$(BIN)/python -m benchmarks.shared_home
	$(BIN)/python -m benchmarks.logs
	$(BIN)/python -m benchmarks.output
	$(BIN)/python -m benchmarks.ends
	$(BIN)/python -m benchmarks.relaunch
	$(BIN)/python -m benchmarks.cost
	$(BIN)/python -m benchmarks.report

chaos: $(VENV)/.test system  ## 1,000 random kills, cuts and power failures of runs on real hosts
	$(BIN)/python -m tests.lab.chaos --events 1000 $(ARGS)

clean:  ## remove the environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache

$(VENV)/.run: pyproject.toml constraints.txt
	@echo 'making the environment $(VENV), with torch: a few minutes the first time'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/.test: $(VENV)/.run constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt $$(.ci/group test check)
	@touch $@

$(VENV)/.libraries: $(VENV)/.test constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt $$(.ci/group libraries)
	@touch $@

system:
	.ci/system
