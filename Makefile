# make demo   the whole way: install, enqueue ./docs, run the real model, show the status
# make test   install and run every test
# make test-dynamodb   every ledger test on both emulators of DynamoDB, which takes longer
# make model  every order of events in the models of the protocol, which needs Spin and gcc
# make lint   style, strict types and the import rules
# make bench  the benchmarks; their figures are explained in docs/benchmarks.md
# make peers  batchq beside other queues, which it installs for that
# make venv   the installation alone
# make clean  remove the installation and the demo's results

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed

.PHONY: demo test test-dynamodb model lint bench peers venv clean

demo: venv
	$(BIN)/batchq enqueue ./docs
	$(BIN)/batchq worker
	$(BIN)/batchq status

# Two processes share the tests; a long one that is left over is stolen by the idle process.
test: venv
	$(BIN)/pytest -n 2 --dist worksteal

# DynamoDB Local comes through npm and runs in Java; without them this half says so and is left out.
test-dynamodb: venv
	BATCHQ_DYNAMODB=full $(BIN)/pytest -n 2 --dist worksteal tests/conformance -k dynamodb

model: venv
	BATCHQ_MODEL=full $(BIN)/pytest tests/model

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: venv
	@for file in $$(grep -l __main__ benchmarks/*.py); do \
		name=$$(basename $$file .py); echo "== $$name"; \
		$(BIN)/python -m benchmarks.$$name || exit 1; \
	done

peers: venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints.txt --editable '.[dev,peers]'
	$(BIN)/python -m benchmarks.peers

venv: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "batchq needs Python 3.11 or newer, and $(PYTHON) is: $$($(PYTHON) --version 2>&1)"; \
		echo "name another one: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; } >&2
	@echo "installing into $(VENV), with torch some minutes and gigabytes"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints.txt --editable '.[inference,minilm,docs,parquet,aws,dev]'
	@touch $(INSTALLED)

clean:
	rm -rf $(VENV) batchq-data
