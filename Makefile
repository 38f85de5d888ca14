# `make demo` shows it, `make test` tells while working, `make prove` proves all of it. `make` alone lists the rest.
PYTHON ?= python3
VENV ?= .venv
KEEP ?=
TESTS ?=
KUBECTL ?= kubectl
IMAGE ?=
OVERLAY ?= base
TIMEOUT ?= 5m
BIN := $(VENV)/bin
# Three, also on two cores: much of a test's time it waits for a process or for the network.
PARALLEL := --numprocesses 3 --dist worksteal
SEARCHES := tests/model tests/test_mutations.py
INSTALLED := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help demo test prove lint format bench sandbox envtest deploy undeploy clean lock

help:  ## This list.
	@grep -hE '^[a-z]+:.*  ## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | awk -F '\t' '{ printf "  make %-10s %s\n", $$1, $$2 }'

demo: $(INSTALLED)  ## The story, in the terminal; KEEP=1 leaves it running to play with.
	$(BIN)/python -m sandbox.demo $(if $(KEEP),--keep)

# Some tests alone start at once, in one process, and whatever their marker.
test: $(INSTALLED)  ## What tells while working, in minutes. TESTS="-k name" or TESTS=path runs those alone, of all.
	$(BIN)/python -m pytest $(or $(TESTS),-m "not prove" $(PARALLEL))

# What only thinks is as right beside others; the rest has bounds in seconds of a machine that does nothing else.
prove: test  ## All tests: after those of `make test` the marked ones, at full length; docs/development.md says which.
	$(BIN)/python -m pytest -m prove $(PARALLEL) $(SEARCHES)
	$(BIN)/python -m pytest -m prove $(SEARCHES:%=--ignore=%)

lint: $(INSTALLED)  ## ruff, mypy --strict and the import contract.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(INSTALLED)  ## What it costs, against the bare reads and against kopf. BENCH=--quick is a look at it.
	$(BIN)/python -m tests.bench $(BENCH)

sandbox: $(INSTALLED)  ## Only the in-memory API server; prints its kubeconfig.
	@if [ -t 0 ]; then set -m; fi; $(BIN)/python -m sandbox; exit

envtest:  ## A real kube-apiserver to test on: prints the folder to name in KUBEBUILDER_ASSETS.
	@tests/envtest.sh

deploy:  ## Install or upgrade: IMAGE=registry/name:tag; OVERLAY=cert-manager, or kueue for the admission check.
	@KUBECTL='$(KUBECTL)' IMAGE='$(IMAGE)' OVERLAY='$(OVERLAY)' TIMEOUT='$(TIMEOUT)' manifests/deploy.sh

# First what makes the API server depend on the guard. By kind and name, in whichever version the cluster serves it.
# Kueue keeps an AdmissionCheck that a ClusterQueue still names until none does: that is not waited for.
undeploy:  ## Uninstall, whichever the overlays and the version of Kubernetes.
	$(KUBECTL) delete --ignore-not-found validatingwebhookconfiguration/trainjob-interlock \
	  mutatingwebhookconfiguration/trainjob-interlock
	$(KUBECTL) delete --ignore-not-found namespace/trainjob-interlock \
	  clusterrolebinding/trainjob-interlock clusterrole/trainjob-interlock \
	  clusterrolebinding/trainjob-interlock-certificate clusterrole/trainjob-interlock-certificate \
	  clusterrolebinding/trainjob-interlock-kueue clusterrole/trainjob-interlock-kueue \
	  clusterrole/trainjob-interlock-viewer clusterrole/trainjob-interlock-operator \
	  priorityclass/trainjob-interlock flowschema/trainjob-interlock
	@if $(KUBECTL) api-resources --api-group=kueue.x-k8s.io --output=name | grep -q '^admissionchecks'; then set -x; \
	  $(KUBECTL) delete --ignore-not-found --wait=false admissionchecks.kueue.x-k8s.io/remaining-pods; fi

lock: $(INSTALLED)  ## Writes constraints.txt from what is installed and tested.
	$(BIN)/pip freeze --exclude-editable | grep -v '^pip==' > constraints.txt

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache dist build

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or later is needed; $(PYTHON) is $$($(PYTHON) --version). Name another one: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@
