# Everything starts from python3 and make; the first call of a target sets up what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV := $(BIN)/uv

.PHONY: all run test test-slow lint types imports format fuzz mutate rows bench docs spec release catalog cassettes upstreams lock clean

all: test lint types imports

# Starts a chat at a terminal; elsewhere the demo, which needs no input.
run: $(VENV)/.ready
	@if [ -t 0 ] && [ -t 1 ]; then $(BIN)/metis; else $(BIN)/metis demo --fast; fi

# One worker more than there are cores, because tests that drive a terminal mostly wait.
WORKERS ?= $(shell echo $$(( $$(nproc 2>/dev/null || echo 2) + 1 )))

test: $(VENV)/.ready
	$(BIN)/python -m pytest -n $(WORKERS)

# What takes too long for every run. METIS_TEST_RANDOM=1 draws new examples.
test-slow: $(VENV)/.ready
	$(BIN)/python -m pytest -n $(WORKERS) -m slow

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.ready
	$(BIN)/basedpyright

imports: $(VENV)/.ready
	$(BIN)/lint-imports --no-cache

format: $(VENV)/.ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Runs every fuzz target for an equal share of TIME seconds; faults are written to tests/fuzz/regressions.
TIME ?= 60
fuzz: $(VENV)/.ready
	PYTHONPATH=tests:tests/wire $(BIN)/python -m fuzz.run --seconds $(TIME)
	$(BIN)/python -m pytest -n auto -m fuzz

# Seeded one-point mutants of a package, each run by the tests that reach it: make mutate ROOM=routing N=40
ROOM ?= routing
N ?= 40
SEED ?= 1
mutate: $(VENV)/.ready
	$(BIN)/python scripts/mutate.py $(ROOM) --count $(N) --seed $(SEED)

rows: $(VENV)/.ready
	@$(BIN)/python tests/project/rows.py

bench: $(VENV)/.ready
	$(BIN)/python benchmarks/canonical.py
	$(BIN)/python benchmarks/wire.py
	$(BIN)/python benchmarks/next_turn.py
	$(BIN)/python benchmarks/store.py
	$(BIN)/python benchmarks/session.py

docs: $(VENV)/.ready
	$(BIN)/python scripts/build_docs.py

# The specification with its vectors as one archive, the same bytes every time.
spec: $(VENV)/.ready
	mkdir -p build
	tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf build/metis-spec.tar spec
	gzip -nf build/metis-spec.tar

# The files of a release in build/release, with their bill of materials, provenance and digests.
release: $(VENV)/.ready
	$(BIN)/python scripts/release.py build build/release
	$(BIN)/python scripts/release.py verify build/release

# Rebuilds the model table and the price table of a day: make catalog DATE=2026-11-15
DATE ?= $(shell date -u +%F)
catalog: $(VENV)/.ready
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --require-hashes --target build/data -r requirements-data.lock
	PYTHONPATH=build/data $(BIN)/python scripts/build_catalog.py $(DATE)

# Records the cassettes of the tests anew, against servers on this machine; needs node and npm.
cassettes: $(VENV)/.ready
	$(UV) pip install --quiet --python $(BIN)/python --require-hashes --target build/cassettes -r requirements-cassettes.lock
	npm install --silent --no-save --prefix build/cassettes-node @copilotkit/aimock@1.43.0
	PYTHONPATH=build/cassettes $(BIN)/python scripts/record_cassettes.py

# Runs every client protocol through the gateway to the same servers.
upstreams: $(VENV)/.ready
	$(UV) pip install --quiet --python $(BIN)/python --require-hashes --target build/cassettes -r requirements-cassettes.lock
	npm install --silent --no-save --prefix build/cassettes-node @copilotkit/aimock@1.43.0
	PYTHONPATH=build/cassettes $(BIN)/python scripts/gateway_upstreams.py

lock: $(VENV)/.ready
	$(UV) pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-annotate --no-header \
	  --python-version 3.11 --group dev --group bench pyproject.toml -o requirements.lock
	$(UV) pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-annotate --no-header \
	  --python-version 3.11 --no-deps --group data -o requirements-data.lock
	$(UV) pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-annotate --no-header \
	  --python-version 3.11 --group cassettes -o requirements-cassettes.lock

clean:
	rm -rf $(VENV) build dist .coverage .hypothesis .ruff_cache .import_linter_cache

# pip installs uv from its hashed lines of the lock, uv installs the rest.
$(VENV)/.ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "metis needs Python 3.11 or later; set PYTHON=/path/to/python3.11"; exit 1; }
	@test -x $(BIN)/python || { echo "Creating $(VENV) …"; $(PYTHON) -m venv $(VENV); }
	@awk '/^uv==/ {on=1} on {print} on && !/\\$$/ {exit}' requirements.lock > $(VENV)/uv.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r $(VENV)/uv.txt
	@echo "Installing the locked dependencies, about 40 seconds the first time …"
	@$(UV) pip sync --python $(BIN)/python --require-hashes requirements.lock
	@$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e .
	@echo "Ready: $(BIN)/metis"
	@touch $@
