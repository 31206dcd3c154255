# make demo                a fleet's traces weighed, example kernels judged on this CPU, one made faster, a report of it
# make test-package        build wheel and sdist, install the wheel in a clean environment, run the demo there
# make docs                build the documentation into site/
# make test                lint and tests, with the pinned Triton
# make test-slow           the tests that take long on the CPU
# make test-newest-triton  the tests of the DSLs, the compile gate and the examples, with the newest Triton
# make test-gpu            the tests that need a device (GPU_PYTHON=python3 takes an environment that is already there)
# make clean               remove what these targets made; runs/ stays
#
# PYTHON=...               the interpreter for the virtual environment, 3.11 or newer
# TORCH_INDEX=...          a package index for torch alone, such as PyTorch's own with CPU builds: without it a Linux
#                          machine gets the CUDA build, which is many times the download

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help demo docs test test-slow test-newest-triton test-package test-gpu clean

ROOT := $(patsubst %/,%,$(dir $(abspath $(lastword $(MAKEFILE_LIST)))))
VENV := $(ROOT)/.venv
NEWEST := $(ROOT)/.venv-newest-triton
PACKAGE := $(ROOT)/build/package
INPUTS := $(ROOT)/pyproject.toml $(wildcard $(ROOT)/requirements/*.txt)
GPU_PYTHON ?= $(VENV)/bin/python
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

FAST := not gpu and not newest_triton and not slow

pin = $(shell grep '^$(1)==' $(ROOT)/requirements/$(2).txt)
say = @echo "==> $(1)"

help:
	@awk '/^$$/ { exit } { sub(/^# ?/, ""); print }' $(ROOT)/Makefile

# ---- environments: a stamp per environment, so that a second run installs nothing

define create
	@test -n "$(PYTHON)" || { echo "error: no Python 3.11 or newer found; name one with make PYTHON=/path/to/python" >&2; exit 1; }
	@test -x $(1)/bin/python || { echo "==> virtual environment $(1) ($$($(PYTHON) --version))"; $(PYTHON) -m venv $(1); }
	$(call say,installing $(call pin,torch,ci))
	@$(1)/bin/python -m pip install -q --disable-pip-version-check $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) "$(call pin,torch,ci)"
endef
install = @$(1)/bin/python -m pip install -q --disable-pip-version-check -c $(ROOT)/requirements/ci.txt

$(VENV)/.stamp-base: $(INPUTS)
	$(call create,$(VENV))
	$(call say,installing atrex)
	$(call install,$(VENV)) -e '$(ROOT)[report,traces]'
	@touch $@

$(VENV)/.stamp-test: $(VENV)/.stamp-base
	$(call say,installing the test tools and $(call pin,triton,triton))
	$(call install,$(VENV)) -e '$(ROOT)[test]'
	@$(VENV)/bin/python -m pip install -q --disable-pip-version-check --no-deps "$(call pin,triton,triton)"
	@touch $@

$(VENV)/.stamp-docs: $(VENV)/.stamp-base
	$(call say,installing $(call pin,mkdocs-material,ci))
	$(call install,$(VENV)) -e '$(ROOT)[docs]'
	@touch $@

$(NEWEST)/.stamp-test: $(INPUTS)
	$(call create,$(NEWEST))
	$(call say,installing atrex with the newest triton)
	$(call install,$(NEWEST)) -e '$(ROOT)[test]'
	@$(NEWEST)/bin/python -m pip install -q --disable-pip-version-check --no-deps --upgrade triton
	@touch $@

# ---- targets

demo: $(VENV)/.stamp-base
	@cd $(ROOT) && $(VENV)/bin/atrex demo

docs: $(VENV)/.stamp-docs
	@cd $(ROOT) && $(VENV)/bin/mkdocs build --strict --quiet --site-dir site
	@echo "$(ROOT)/site/index.html"

test: $(VENV)/.stamp-test
	$(call say,ruff)
	@cd $(ROOT) && $(VENV)/bin/ruff check src tests examples
	$(call say,pytest of what measures nothing: one process of one thread per core)
	@cd $(ROOT) && OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -q -n auto --dist loadfile -m "$(FAST) and not alone"
	$(call say,pytest of what measures time: alone, and once more where it fails)
	@cd $(ROOT) && $(VENV)/bin/python -m pytest -q -m "$(FAST) and alone" --reruns 1 -rR

test-slow: $(VENV)/.stamp-test
	@cd $(ROOT) && $(VENV)/bin/python -m pytest -q -m "slow and not gpu and not newest_triton"

test-newest-triton: $(NEWEST)/.stamp-test
	$(call say,pytest with triton $$($(NEWEST)/bin/python -c 'import triton; print(triton.__version__)'))
	@cd $(ROOT) && $(NEWEST)/bin/python -m pytest -q -m "not gpu" $(wildcard $(ROOT)/tests/dsls $(ROOT)/tests/compile $(ROOT)/tests/examples)

test-package: $(VENV)/.stamp-base
	$(call say,building sdist and wheel)
	$(call install,$(VENV)) build pytest pytest-timeout
	@rm -rf $(PACKAGE) && mkdir -p $(PACKAGE)
	@$(VENV)/bin/python -m build --outdir $(PACKAGE)/dist $(ROOT) >$(PACKAGE)/build.log || { tail -20 $(PACKAGE)/build.log >&2; exit 1; }
	@cd $(ROOT) && ATREX_DIST=$(PACKAGE)/dist $(VENV)/bin/python -m pytest -q tests/test_package.py
	$(call say,installing the wheel in a clean environment and running the demo there)
	$(call create,$(PACKAGE)/venv)
	$(call install,$(PACKAGE)/venv) "$$(echo $(PACKAGE)/dist/*.whl)[report,traces]"
	@cd $(PACKAGE) && time venv/bin/atrex demo --out demo
	$(call say,resolving the extras)
	@for extra in $$($(VENV)/bin/python -c 'import tomllib; print(*tomllib.load(open("$(ROOT)/pyproject.toml", "rb"))["project"]["optional-dependencies"])'); do \
		$(PACKAGE)/venv/bin/python -m pip install -q --disable-pip-version-check --dry-run "$$(echo $(PACKAGE)/dist/*.whl)[$$extra]" || { echo "error: $$extra does not resolve" >&2; exit 1; }; \
		echo "$$extra: resolves"; \
	done

test-gpu: $(if $(filter $(VENV)/bin/python,$(GPU_PYTHON)),$(VENV)/.stamp-test)
	@cd $(ROOT) && PYTHONPATH=src $(GPU_PYTHON) -m pytest -q -m gpu

clean:
	@rm -rf $(VENV) $(NEWEST) $(ROOT)/build $(ROOT)/site $(ROOT)/dist $(ROOT)/src/*.egg-info $(ROOT)/.pytest_cache $(ROOT)/.ruff_cache
	@find $(ROOT)/src $(ROOT)/tests $(ROOT)/examples -name __pycache__ -type d -prune -exec rm -rf {} +
