# `make demo` and `make test` do all of their own set-up.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
MODEL ?= smollm2-135m

.PHONY: demo test soak bench lint model clean

demo: $(INSTALLED)
	$(BIN)/actorllm chat $(MODEL) --temperature 0 -p "What is the capital of France?"

test: lint model
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal

soak: model
	ACTORLLM_SOAK=1 OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal

bench: model
	$(BIN)/python benchmarks/against_transformers.py
	$(BIN)/actorllm bench startup $(MODEL)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

model: $(INSTALLED)
	$(BIN)/actorllm fetch $(MODEL)
	$(BIN)/actorllm fetch gemma3-270m

# torch first and by its exact version, so that nothing else chooses a build for it
$(INSTALLED): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet torch==2.13.0
	$(BIN)/pip install --quiet --editable '.[test]'
	touch $@

clean:
	rm -rf $(VENV)
