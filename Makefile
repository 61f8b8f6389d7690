# Two targets do everything on a fresh machine: `make demo` and `make test`. Both create .venv on first use.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# CUDA sources are built without a GPU by these wheels; other systems have none, and those tests say so and skip.

comma := ,
EXTRAS := $(if $(filter Linux-x86_64 Linux-aarch64,$(shell uname -s)-$(shell uname -m)),dev$(comma)cuda12,dev)
WORKERS ?= 2

.PHONY: demo env test affected slow exhaustive slow-list torch fuzz docs docs-tools lint format typecheck check-all clean dist

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[$(EXTRAS)]"
	touch $@

# The tests of torch.compile skip, and say so, where PyTorch is not installed: it is large, and nothing else needs it. The
# build for processors where the index has it, whatever build it has otherwise.
torch: $(STAMP)
	$(BIN)/python -c "import matplotlib, onnxscript, torch" 2>/dev/null || \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "torch==2.13.0+cpu" "onnxscript>=0.1" "matplotlib>=3.8" || \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[torch,insight]"

# Wheel and sdist in dist/, tried in an empty environment; the slow tests try them as well.
dist: $(STAMP)
	rm -rf dist && $(BIN)/python -m pip install --quiet --disable-pip-version-check "hatchling>=1.25"
	$(BIN)/python -m hatchling build -d dist
	ROLLER_DIST=dist $(BIN)/python -m pytest -n 0 -q tests/test_release.py

# The environment alone: .venv/bin/roller.
env: $(STAMP)

demo: $(STAMP)
	$(BIN)/python -m examples.model
	$(BIN)/python -m examples.demo

test: $(STAMP)
	$(BIN)/python -m pytest -n $(WORKERS) -q -m "not slow"

# What the change since a commit can reach, nearest first, slow tests too. SINCE=COMMIT; without it since all slow tests
# last passed. MINUTES=20: begins no test later, and names those that did not run.
affected: $(STAMP)
	$(BIN)/python -m pytest -n $(WORKERS) -m "not exhaustive" --affected-by $(or $(SINCE),last-slow-green) \
	  --minutes $(MINUTES)

# The long sweeps: every operator on every GPU, every kernel of the odd cases on the emulator. Minutes, not seconds.
# SHARD=1/4: a quarter of them. Where all have passed at one commit, tests/last_slow_green.json names it.
slow: $(STAMP)
	$(BIN)/python -m pytest -n $(WORKERS) -q -m "slow and not exhaustive" --record-slow-green $(SHARD:%=--shard %)

# What `make slow` tries on one device, on the others.
exhaustive: $(STAMP)
	$(BIN)/python -m pytest -n $(WORKERS) -q -m exhaustive

# Everything, and which tests of it are too long for `make test`.
slow-list: $(STAMP)
	$(BIN)/python -m pytest -n $(WORKERS) -q --write-slow-list tests/slow_tests.txt

# 5,000 random cases of every generator; CASES, SEED and MINUTES (per generator) say otherwise. Goes on where it stopped.
CASES ?= 5000
SEED ?= 0
MINUTES ?= 600
fuzz: $(STAMP)
	for g in expressions operators calls gpu onnx; do \
	  $(BIN)/python -m benchmarks.fuzz $$g --cases $(CASES) --seed $(SEED) --minutes $(MINUTES) || failed=1; \
	done; test -z "$$failed"

# The site of docs/ in build/site; a broken link, an omitted page or a name of the API that is not there is an error.
docs-tools: $(STAMP)
	$(BIN)/python -c "import material, mkdocstrings_handlers.python" 2>/dev/null || \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[docs]"

docs: docs-tools
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

lint: $(STAMP)
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/lint-imports --no-logo --no-cache

format: $(STAMP)
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

typecheck: $(STAMP)
	$(BIN)/mypy

check-all: lint typecheck $(STAMP)
	$(BIN)/python -m pytest -n $(WORKERS) -q

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
