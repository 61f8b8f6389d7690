# Two targets do everything on a fresh machine: `make demo` and `make test`. Both create .venv on first use.
PYTHON ?= python3
VENV ?= .venv
$(if $(word 2,$(VENV)),$(error VENV: expected a path without spaces, got '$(VENV)'))
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# The versions that CI tested; `make lock` resolves them anew, `make newest` tries the newest releases.
CONSTRAINTS ?= constraints.txt
# Where bytecode is not kept, pytest rewrites the assertions of every test file in every process of every run.
unexport PYTHONDONTWRITEBYTECODE
# CUDA sources are built without a GPU by these wheels; other systems have none, and those tests say so and skip.

comma := ,
EXTRAS := $(if $(filter Linux-x86_64 Linux-aarch64,$(shell uname -s)-$(shell uname -m)),dev$(comma)cuda12,dev)
WORKERS ?= 2

.PHONY: demo env browser page vscode lock newest test affected hostile slow exhaustive slow-list torch fuzz docs docs-tools lint format \
  typecheck check-all clean dist

PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS)
# uv is six times as fast; pip where uv is unavailable or cannot reach the index.
INSTALL := $(BIN)/python -m uv pip install --quiet --python $(BIN)/python -c $(CONSTRAINTS)

$(STAMP): pyproject.toml runtime/pyproject.toml $(CONSTRAINTS)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	{ $(PIP) uv && $(INSTALL) -e ./runtime -e ".[$(EXTRAS)]"; } || $(PIP) -e ./runtime -e ".[$(EXTRAS)]"
	touch $@

# Resolves the newest versions for all Pythons that roller takes. PyTorch is pinned below: its build depends on the machine.
lock: $(STAMP)
	$(PIP) uv
	printf '%s\n' uv hatchling filelock fsspec jinja2 matplotlib mpmath networkx onnxscript sympy | \
	$(BIN)/python -m uv pip compile --quiet --universal --upgrade --python-version 3.10 --no-header --no-annotate \
	  --extra dev --extra cuda12 --extra docs --extra fallback --no-emit-package roller-runtime pyproject.toml - -o constraints.txt

# The quick tests with the newest releases that pyproject.toml permits; says which differ from those that CI proved.
newest:
	mkdir -p build && : > build/unconstrained.txt
	rm -rf build/newest
	$(MAKE) --no-print-directory env VENV=build/newest CONSTRAINTS=build/unconstrained.txt
	build/newest/bin/python -m tools.newest constraints.txt
	build/newest/bin/python -m pytest -n $(WORKERS) -q -m "not slow"

# The tests of torch.compile skip, and say so, where PyTorch is not installed: it is large, and nothing else needs it. The
# build for processors where the index has it, whatever build it has otherwise.
torch: $(STAMP)
	$(BIN)/python -c "import matplotlib, onnxscript, torch" 2>/dev/null || \
	$(PIP) "torch==2.13.0+cpu" onnxscript matplotlib || $(PIP) -e ".[torch,insight]"

# What the tests of reports in a browser need; Chromium and Node come from the system.
browser:
	cd tests/browser && npm ci --ignore-scripts --no-audit --no-fund

# The extension for VS Code, bundled and packed in editors/vscode/dist, with its tests against a stub of the editor.
vscode:
	cd editors/vscode && npm ci --ignore-scripts --no-audit --no-fund && npm run package && npm test

# The editor of the live page, bundled from page/ into roller/server/page/codemirror.js; Node comes from the system.
page:
	cd page && npm ci --ignore-scripts --no-audit --no-fund && node build.js

# The wheels of roller and roller-runtime and the sdist in dist/, tried in empty environments; the slow tests try them as well.
dist: $(STAMP)
	rm -rf dist
	$(BIN)/python -m hatchling build -d dist
	cd runtime && $(abspath $(BIN))/python -m hatchling build -t wheel -d ../dist
	ROLLER_DIST=dist $(BIN)/python -m pytest -n 0 -q tests/test_release.py

# The environment alone: .venv/bin/roller.
env: $(STAMP)

demo: $(STAMP)
	$(BIN)/python -m examples.model
	$(BIN)/python -m examples.demo

test: $(STAMP)
	$(BIN)/python -m pytest -n $(WORKERS) -q -m "not slow"

# The quick tests under adverse conditions: random order, masked processor features, no network, and others.
hostile: $(STAMP)
	$(BIN)/python -m tools.hostile $(if $(ONLY),--only "$(ONLY)")

# What the change since a commit can reach, nearest first, slow tests too. SINCE=COMMIT; without it since all slow tests
# last passed. MINUTES=20: starts no test later, and lists those that did not run. MARKS="slow and not exhaustive": slow ones.
MARKS ?= not exhaustive
affected: $(STAMP)
	$(BIN)/python -m pytest -n $(WORKERS) -m "$(MARKS)" --affected-by "$(or $(SINCE),last-slow-green)" \
	  $(MINUTES:%=--minutes %) $(MORE:%=--more-minutes %)

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
fuzz: $(STAMP)
	for g in expressions operators calls gpu onnx; do \
	  $(BIN)/python -m benchmarks.fuzz $$g --cases $(CASES) --seed $(SEED) --minutes $(or $(MINUTES),600) || failed=1; \
	done; test -z "$$failed"

# The site of docs/ in build/site; a broken link, an omitted page or a name of the API that is not there is an error.
docs-tools: $(STAMP)
	$(BIN)/python -c "import material, mkdocstrings_handlers.python" 2>/dev/null || \
	$(INSTALL) -e ".[docs]" || $(PIP) -e ".[docs]"

docs: docs-tools
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

lint: $(STAMP)
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/lint-imports --no-logo --no-cache

format: $(STAMP)
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

typecheck: $(STAMP)
	$(BIN)/mypy && $(BIN)/mypy runtime/hatch_build.py

check-all: lint typecheck $(STAMP)
	$(BIN)/python -m pytest -n $(WORKERS) -q

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
