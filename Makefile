# Everything lives in `.venv`, made from uv.lock by `make setup`; caches and the demo's own home lie under `.cache`.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.setup
# The lock pins uv too, so that what installs it cannot differ from what it installs.
UV := $(shell sed -n '/^name = "uv"$$/{n;s/^version = "\(.*\)"/\1/p;}' uv.lock)
SOURCE := .cache/marshmallow-3.13.0.tar.gz
JOBS ?= 2

export UV_SYSTEM_CERTS := 1
export UV_PYTHON_DOWNLOADS := never
export UV_PROJECT_ENVIRONMENT := $(VENV)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
unexport VIRTUAL_ENV PYTHONHOME PYTHONPATH

.DEFAULT_GOAL := help
.PHONY: help setup test lint types format demo demo-real bench bench-long chaos clean

help: ## Show this list.
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/\1\t\2/p' Makefile | \
	while IFS='	' read -r name line; do printf '  make %-12s %s\n' "$$name" "$$line"; done

setup: $(STAMP) ## Make .venv with everything in it; instant when nothing has changed.

$(STAMP): pyproject.toml uv.lock
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null || \
	{ echo "make: Salience needs Python 3.11 to 3.14, and $(PYTHON) is not that — make PYTHON=python3.12 setup" >&2; exit 1; }
	@rm -f $@
	@$(PY) -c 'import pip' 2>/dev/null || { echo "· a virtual environment in $(VENV)"; $(PYTHON) -m venv --clear $(VENV); }
	@echo "· uv $(UV)"
	@for again in 1 0; do \
	  $(PY) -m pip install --quiet uv==$(UV) && break; \
	  [ $$again = 1 ] || exit 1; echo "· once more: the package index did not answer" >&2; sleep 3; done
	@echo "· the packages of uv.lock (200 MB at the first time)"
	@for again in 1 0; do \
	  $(VENV)/bin/uv sync --frozen && break; \
	  [ $$again = 1 ] || exit 1; echo "· once more: the package index did not answer" >&2; sleep 3; done
	@$(MAKE) --no-print-directory $(SOURCE) || \
	echo "· no source of marshmallow, which only \`make demo-real\` needs; it will ask for it again" >&2
	@touch $@

# The archive as its project published it; pip checks the hash. Its build metadata is asked for in passing, hence a moment.
$(SOURCE): demo/real/requirements.txt
	@echo "· the source archive of marshmallow 3.13.0, for \`make demo-real\`"
	@mkdir -p $(@D)
	@$(PY) -m pip download --quiet --no-deps --no-binary marshmallow --dest $(@D) --requirement $< || \
	{ echo "make: no source archive of marshmallow 3.13.0: pip got none from the package index" >&2; exit 1; }
	@touch $@

test: setup lint types ## Run everything that must pass: lint, format, layers, types, all tests.
	@echo "· tests"
	@$(PY) -m pytest -n $(JOBS) --dist loadfile

lint: setup ## Check style, format and the layer table.
	@echo "· lint, format, layers"
	@$(VENV)/bin/ruff check --quiet .
	@$(VENV)/bin/ruff format --quiet --check .
	@$(VENV)/bin/lint-imports --no-cache >$(VENV)/lint-imports.txt 2>&1 || { cat $(VENV)/lint-imports.txt; exit 1; }

types: setup ## Check types, strictly in the core and the workflows.
	@echo "· types"
	@$(VENV)/bin/basedpyright

format: setup ## Bring the code into the house's format.
	@$(VENV)/bin/ruff check --quiet --fix .
	@$(VENV)/bin/ruff format .

demo: setup ## A session mends a failing test while its worker is killed; then one byte of its record is forged.
	@$(PY) -m demo

demo-real: setup $(SOURCE) ## The same on real input: a rounding bug of the published marshmallow 3.13.0.
	@$(PY) -m demo.real

bench: setup ## Measure Salience beside bare Temporal and, where their scripts are, its peers, then 2,000 turns; some 15 minutes.
	@$(PY) -m bench
	@$(PY) -m bench.long 2000

bench-long: setup ## Measure one session of 10,000 turns; some 15 minutes on an idle machine.
	@$(PY) -m bench.long 10000

chaos: setup ## Try every fault at every place: parts killed, frozen, cut off; full disks; a storm. Half an hour or more.
	@SALIENCE_CHAOS=full SALIENCE_CHAOS_KEEP=1 $(PY) -m pytest tests/chaos -n $(JOBS) --dist loadfile

clean: ## End the demo's stacks and delete .venv and all caches.
	@for home in .cache/*/home .cache/*/copy; do \
	  [ ! -d $$home ] || SALIENCE_HOME=$$PWD/$$home $(VENV)/bin/salience down --purge --yes >/dev/null || true; done
	rm -rf $(VENV) .cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
