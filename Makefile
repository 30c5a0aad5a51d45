# `make help` lists the targets. Each needs Python 3.11 or newer and nothing else: what is missing is installed into .venv.
# The tests and the demo use the built wheel, never this checkout; only what changed is made again.

PYTHON ?= $(or $(shell command -v python3.11),python3)
WORKERS ?= 2

VERSIONS ?= 2.8.0 2.14.1
PYTHONS ?= python3.13 python3.14

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check
SOURCES := pyproject.toml setup.py MANIFEST.in README.md LICENSE \
           $(shell find dispatchmon cli -name '*.py' -o -name '*.c' -o -name '*.pyi' -o -name '*.json' -o -name 'py.typed' -o -type d ! -name __pycache__)

# No current directory on sys.path: `import dispatchmon` finds the installed wheel.
export PYTHONSAFEPATH := 1
SCRIPT := PYTHONPATH=tests/shared:tests/judges $(BIN)/python

.DEFAULT_GOAL := help
.PHONY: help demo test test-fast test-audit test-models test-nonfinite test-fuzz test-operators test-pythons test-sanitize test-versions behaviour lint bench bench-peers docs clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 20

demo: $(VENV)/.wheel ## train a small network under the monitor and summarize its trace
	@$(BIN)/python examples/train_digits.py
	@echo
	$(BIN)/dispatchmon summarize digits.arrow

test: lint test-sanitize ## lint, check types, and test the built wheel
	@echo '[test] pytest'
	@DISPATCHMON_TEST_INSTALLED=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup

test-fast: $(VENV)/.wheel ## the tests without those marked slow and the judges, for every change
	@DISPATCHMON_TEST_INSTALLED=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -m "not slow" --ignore tests/judges

test-models: $(VENV)/.wheel ## compare real architectures of every installed library with and without a monitor
	@$(SCRIPT) tests/judges/models/sweep.py

test-nonfinite: $(VENV)/.wheel ## all judges of `dispatchmon nonfinite`: fuzzed programs, unwritten memory
	@DISPATCHMON_TEST_ALL=1 DISPATCHMON_TEST_INSTALLED=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -s tests/judges/test_nonfinite_judges.py

test-fuzz: $(VENV)/.wheel ## put 5,000 damaged and crafted traces to every command (an hour)
	@for n in 0 2500; do $(SCRIPT) tests/judges/trace_fuzz.py --count 2500 --seed $$n & pids="$$pids $$!"; done; \
	  for pid in $$pids; do wait $$pid || exit 1; done

behaviour: $(VENV)/.wheel ## learn again what operators do with NaN and Inf, for another torch
	@$(BIN)/python tools/learn_behaviour.py

test-audit: $(VENV)/.wheel ## judge the in-place audit by every program and a long fuzz
	@DISPATCHMON_TEST_INSTALLED=1 DISPATCHMON_AUDIT=all $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup tests/hazards tests/judges/test_audit_judges.py

test-sanitize: $(VENV)/.wheel ## the C kernel under the address and undefined-behaviour sanitizers
	@echo '[test] the kernel under sanitizers'
	@$(BIN)/python tests/judges/sanitize_kernel.py

lint: $(VENV)/.wheel ## ruff and mypy --strict
	@echo '[lint] ruff'
	@$(BIN)/ruff check --quiet --output-format concise
	@echo '[lint] mypy --strict'
	@$(BIN)/mypy

test-versions: $(VENV)/.wheel ## run the tests on other versions of torch, VERSIONS="2.8.0 2.14.1" (each is large)
	@for v in $(VERSIONS); do echo "[test] torch $$v"; env=.venv-$$v; [ -d $$env ] || $(PYTHON) -m venv $$env; \
	  $$env/bin/python -m pip install -qq torch==$$v && \
	  $$env/bin/python -m pip install -qq --force-reinstall --no-deps dist/dispatchmon-*.whl && \
	  $$env/bin/python -m pip install -qq "$$(echo dist/dispatchmon-*.whl)[dev]" torch==$$v && \
	  DISPATCHMON_TEST_INSTALLED=1 $$env/bin/python -m pytest -n $(WORKERS) --dist loadgroup || exit 1; done

test-pythons: $(VENV)/.wheel ## run the tests on other Pythons, PYTHONS="python3.13 python3.14" (each needs a torch of its own)
	@for p in $(PYTHONS); do echo "[test] $$p"; env=.venv-$$p; [ -d $$env ] || $$p -m venv $$env; \
	  $$env/bin/python -m pip install -qq --constraint constraints.txt torch && \
	  $$env/bin/python -m pip install -qq --force-reinstall --no-deps dist/dispatchmon-*.whl && \
	  $$env/bin/python -m pip install -qq --constraint constraints.txt "$$(echo dist/dispatchmon-*.whl)[dev]" && \
	  DISPATCHMON_TEST_INSTALLED=1 $$env/bin/python -m pytest -n $(WORKERS) --dist loadgroup || exit 1; done

bench: $(VENV)/.wheel ## measure what monitoring costs, with one thread and with two, into docs/performance.md
	@for n in 1 2; do $(BIN)/python benchmarks/overhead.py --threads $$n --write docs/performance.md || exit 1; done

bench-peers: $(VENV)/.wheel ## the same beside other tools, in an environment of their own (large, once)
	@[ -d .venv-peers ] || $(PYTHON) -m venv .venv-peers
	@.venv-peers/bin/python -m pip install -qq --constraint constraints.txt torch
	@.venv-peers/bin/python -m pip install -qq --constraint constraints.txt "$$(echo dist/dispatchmon-*.whl)" mindstudio-probe==26.2.0 torchlens
	@.venv-peers/bin/python benchmarks/peers.py --write docs/performance.md

docs: $(VENV)/.wheel ## write the generated parts of README.md and docs/ again
	@$(BIN)/python docs/make_format.py
	@$(BIN)/python docs/make_architecture.py
	@$(BIN)/python docs/make_outputs.py

clean: ## remove everything that make has made
	rm -rf $(VENV) .venv-* build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis digits.arrow

# torch first and at a pinned version, so that nothing else pulls in another build of it.
$(VENV)/.torch: constraints.txt
	@echo '[setup] a virtual environment in $(VENV), with $(shell grep ^torch== constraints.txt) (large, once)'
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; set PYTHON=")'
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install --constraint constraints.txt torch setuptools build
	@touch $@

$(VENV)/.wheel: $(VENV)/.torch $(SOURCES)
	@echo '[setup] the wheel of this checkout and what it needs'
	@rm -rf build dist *.egg-info
	@$(BIN)/python -m build --no-isolation --wheel --outdir dist . > $(VENV)/build.log 2>&1 || { cat $(VENV)/build.log; exit 1; }
	@rm -rf build *.egg-info
	@$(PIP) install --force-reinstall --no-deps dist/dispatchmon-*.whl
	@$(PIP) install --constraint constraints.txt "$$(echo dist/dispatchmon-*.whl)[dev]"
	@touch $@

test-operators: $(VENV)/.wheel ## torch's whole operator database under the monitor, and docs/coverage.md
	@for k in 1 2; do $(SCRIPT) tests/judges/operator_sweep.py --samples 6 --share $$k/2 --json $(VENV)/sweep$$k.json & done; wait
	@$(SCRIPT) tests/judges/operator_sweep.py --write-docs $(VENV)/sweep1.json $(VENV)/sweep2.json
