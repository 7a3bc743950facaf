# make lab    set up .venv and open JupyterLab on the first notebook
# make test   set up .venv and run every test
# Further: setup, lint, format, record (measure on this GPU), lock (renew constraints.txt), clean.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

PYTHONS := python3.13 python3.12 python3.11 python3
USABLE := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
PYTHON = $(shell for p in $(PYTHONS); do if $$p -c '$(USABLE)' >/dev/null 2>&1; then echo $$p; break; fi; done)
PIP := .venv/bin/python -m pip --disable-pip-version-check --quiet
# JupyterLab refuses to run as root (as containers do) unless told to.
AS_ROOT := $(if $(filter 0,$(shell id -u)),--allow-root)

.PHONY: setup lab test lint format record lock clean

setup: .venv/lab

lab: .venv/lab
	.venv/bin/jupyter lab --ip=127.0.0.1 --ServerApp.root_dir="$(CURDIR)" $(AS_ROOT) notebooks/00_start_here.ipynb

# Up to four test files at a time; each file's tests stay together and share its kernels and its browser.
test: .venv/test
	.venv/bin/python -m pytest -n auto --maxprocesses=4 --dist loadfile

lint: .venv/test
	.venv/bin/ruff check
	.venv/bin/ruff format --check

format: .venv/test
	.venv/bin/ruff check --fix
	.venv/bin/ruff format

# On a machine with a GPU; `record counters` needs Nsight Compute.
record: .venv/lab
	.venv/bin/python -m texlab.bench record ladder
	.venv/bin/python -m texlab.bench record counters
	.venv/bin/python -m texlab.bench record pipeline
	.venv/bin/python -m texlab.bench record timeline
	.venv/bin/python tools/ladder_table.py

.venv/pyvenv.cfg:
	@if [ -z "$(PYTHON)" ]; then \
	  echo "texlab needs Python 3.11 or newer with its venv module, under one of the names $(PYTHONS)." >&2; \
	  echo "Debian, Ubuntu: sudo apt-get install python3 python3-venv. Fedora: sudo dnf install python3." >&2; exit 1; fi
	$(PYTHON) -m venv .venv

# Install texlab (editable) with the extras in $(1) and the one for this machine's NVIDIA driver, if it has one.
define install
	@gpu=$$(.venv/bin/python tools/gpu_extra.py); \
	extras=$$(echo $(1) $$gpu | tr ' ' ,); \
	echo "installing texlab$${extras:+[$$extras]} into .venv (a minute or two the first time)"; \
	$(PIP) install -c constraints.txt hatchling; \
	$(PIP) install -c constraints.txt --no-build-isolation --editable ".$${extras:+[$$extras]}"
	@touch $@
endef

.venv/lab: .venv/pyvenv.cfg pyproject.toml constraints.txt
	$(call install,tvm)

.venv/test: .venv/pyvenv.cfg pyproject.toml constraints.txt
	$(call install,tvm test)

# One file for Linux, macOS and Windows and both CUDA versions: CUDA 12 and 13 packages differ in name, all but
# cuda-toolkit, which holds no files and only names the others; it is left out.
UV := build/lock/bin/uv pip compile --quiet --universal --python-version 3.11 --strip-extras --no-header --no-annotate \
  --no-emit-index-url --no-emit-find-links
lock:
	$(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip install --quiet --upgrade uv
	$(UV) --extra cuda13 --extra tvm --extra opencl --extra test pyproject.toml | grep -v ^cuda-toolkit= > build/lock/13
	$(UV) --extra cuda12 --constraint build/lock/13 pyproject.toml | grep -v ^cuda-toolkit= > build/lock/12
	(echo "# Every version, pinned: pip install -c constraints.txt -e . (written by make lock)"; \
	  LC_ALL=C sort -u build/lock/13 build/lock/12) > constraints.txt

clean:
	rm -rf .venv build dist .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
