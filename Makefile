# `make demo` and `make test` need nothing else first: each sets up what is missing, which takes no time when nothing is.
# ARGS is handed on:  make test ARGS="-k ssh"

.DEFAULT_GOAL := help
.PHONY: help setup demo test elsewhere horovod-by-agents check lint coverage matrix image worker-image kubernetes docs bench chaos clean

PYTHON ?= python3
# Relative, since the folder's own path may hold a space.
RUN := .venv/bin/python -m
# Four at once, also on two cores: tests of engines mostly wait, and there are four of those. A tests' process that
# hangs is ended and its test is run once more; a whole run that hangs is interrupted, so that it still names what failed.
TESTS := timeout --foreground --signal=INT --kill-after=2m 45m \
	$(RUN) pytest -n 4 --max-worker-restart=1 -o faulthandler_exit_on_timeout=true
# Images of containers often set it, and uv compiles nothing: each process would then compile all of TensorFlow anew.
unexport PYTHONDONTWRITEBYTECODE

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' Makefile | while IFS='|' read -r name does; do printf '  make %-17s %s\n' "$$name" "$$does"; done

setup:  ## make .venv with everything that Muster needs; only what is missing
	@$(PYTHON) scripts/setup.py

demo: setup  ## train a small model on several workers of this machine, and watch
	@$(RUN) muster.commands.demo $(ARGS)

kubernetes:  ## build a real Kubernetes for its tests, once; without it they skip
	@bash scripts/kubernetes.sh

test:  ## run every test
	@$(PYTHON) scripts/setup.py --tests
	$(TESTS) $(ARGS)

horovod-by-agents:  ## run Horovod's tests with agents in place of horovodrun as well
	@$(PYTHON) scripts/setup.py --tests
	$(TESTS) --horovod-by-agents -m horovod $(ARGS)

elsewhere:  ## run the strategies' tests on hosts, in containers, on Slurm and on Kubernetes as well
	@$(PYTHON) scripts/setup.py --tests
	$(TESTS) -m elsewhere $(ARGS)

check: lint  ## lint, and run the quick tests: without TensorFlow, Horovod and engines
	$(TESTS) -m "not slow" $(ARGS)

lint: setup  ## check style, format and types
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy

matrix: setup  ## install what is built into fresh environments, and run quick tests on other Pythons and oldest packages
	$(PYTHON) scripts/matrix.py $(ARGS)

coverage: setup  ## run the simulated runs, and say how much of sdk/muster/run and pools they run
	$(RUN) coverage run --source=sdk/muster/run,sdk/muster/pools -m pytest -q tests/simulated $(ARGS)
	$(RUN) coverage report --show-missing --skip-covered --fail-under=95

# What builds the image: the one of the two that is there, Docker where both are.
ENGINE = $(shell command -v docker || command -v podman)

image:  ## build an image for workers, with Docker or Podman (ENGINE=podman says which)
	"$(ENGINE)" build --tag muster-worker $(ARGS) containers

worker-image:  ## build the same on a base of the tests' own, once, for its tests; without it they skip
	@$(PYTHON) scripts/setup.py --tests
	@bash scripts/worker_image.sh

docs: setup  ## make the documentation, in docs/_build
	$(RUN) sphinx -q -W --keep-going -b html docs docs/_build

bench: setup  ## measure what docs/figures.md has
	$(RUN) benchmarks $(ARGS)

chaos: setup  ## put random faults into random ranks, and see whether it is told who failed first
	$(RUN) benchmarks.chaos $(ARGS)

clean:  ## remove what set-up and tests have made; the kept wheel of Horovod stays
	rm -rf .venv .venv-* build dist sdk/muster.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
