# The newest of these Pythons that is there and works: a shim may be found with nothing behind it,
# and a distribution's Python may lack what a virtual environment needs.
PYTHON ?= $(shell for python in python3.14 python3.13 python3.12 python3.11; do \
	$$python -c 'import venv, ensurepip' >/dev/null 2>&1 && echo $$python && break; done)
VENV ?= .venv
WORKERS ?= 3
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup demo test test-fast test-more test-long lint protos bench clean docs site coverage dist e2e-containers

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { \
	  echo "No python3.14, python3.13, python3.12 or python3.11 was found that works and has venv and ensurepip." >&2; \
	  echo "Install one (on Debian: python3.11 and python3.11-venv), or name one: make $(or $(MAKECMDGOALS),setup) PYTHON=/path/to/python" >&2; \
	  exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' || { \
	  echo "$(PYTHON) does not run, or is no Python 3.11, 3.12, 3.13 or 3.14." >&2; \
	  echo "Name another one: make $(or $(MAKECMDGOALS),setup) PYTHON=/path/to/python" >&2; \
	  exit 1; }
	"$(PYTHON)" -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(STAMP)

demo: setup
	$(BIN)/fedrec demo $(DEMO)

# Tests run in WORKERS processes, each on one thread. Many wait for other processes, so that three
# keep two cores busy; those of the fast part do not. The tests of a file stay together, in the order
# of the tree: files of few tests, which take longest, would else be the last ones.
# What Python compiled is kept, whatever the shell says: each worker, and each process that a test
# starts, would compile it again. Threads of torch that wait sleep, and take no core from others.
# Parties force thousands of small files to the disk. Tests kill processes and no machine, so that
# memory is as good, where there is room and programs run.
MEMORY = $(shell test -w /dev/shm && ! grep -q '^[^ ]* /dev/shm .*noexec' /proc/mounts && \
	test "$$(df -Pk /dev/shm | awk 'NR == 2 { print $$4 }')" -gt 4194304 && echo /dev/shm)
ALONE = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE TMPDIR="$(or $(TMPDIR),$(MEMORY),/tmp)" \
	$(BIN)/python -m pytest
PYTEST = $(ALONE) --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder
# What failed beside other tests is tried once more without them. Its report stays in the output: a
# failure that the second try doesn't repeat is a race, in the test or in fedrec, and waits to be mended.
AGAIN = { test $$? -eq 1 && echo "Trying what failed once more, alone. If it passes now, it is a race to be mended." && \
	$(ALONE) --last-failed --last-failed-no-failures none --verbose $(1); }

test: setup
	$(PYTEST) || $(call AGAIN)

test-fast: WORKERS := 2
test-fast: setup
	$(PYTEST) --hypothesis-profile fast tests/common tests/lab tests/client tests/authority tests/docs -m 'not cuda and not slow and not long and not hours'

test-more: setup
	$(PYTEST) -m 'long and not cuda' || $(call AGAIN,-m 'long and not cuda')
	FEDREC_DEVICE=cpu $(PYTEST) -m cuda tests/common/training/test_cuda.py

# Of the fast part, in this process's own tests: what only other processes run shows as missing.
coverage: setup
	$(PYTEST) tests/common tests/lab tests/client tests/authority tests/docs -m 'not cuda and not slow and not long and not hours' \
	  --cov --cov-report=term --cov-report=html:build/coverage

# Each of these is alone: it goes to whichever process is free. One that fails says how it is
# repeated. Those of the module that starts a Ray cluster stay together.
SOAK_SECONDS ?= 3600
FUZZ_SECONDS ?= 600
test-long: test-more
	FEDREC_SOAK_SECONDS=$(SOAK_SECONDS) FUZZ_SECONDS=$(FUZZ_SECONDS) \
	  $(PYTEST) --dist loadgroup -m 'hours and not cuda'

# Needs docker or podman; CONTAINERS names another command, BUILD_ARGS is added to every build.
e2e-containers: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m containers tests/containers --verbose --durations=0

# Whether the benchmarks still call what is there. They aren't held to strict types.
MYPY_BENCHMARKS = MYPYPATH=common:server:client:lab:tests $(BIN)/mypy --config-file= --cache-dir .mypy_cache/benchmarks \
	--check-untyped-defs --no-strict-optional --follow-imports=silent --ignore-missing-imports \
	--disable-error-code=arg-type --disable-error-code=assignment --disable-error-code=dict-item \
	--disable-error-code=index --disable-error-code=method-assign --disable-error-code=misc \
	--disable-error-code=operator --disable-error-code=var-annotated

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(MYPY_BENCHMARKS) benchmarks/*.py
	$(BIN)/lint-imports
	$(BIN)/python tools/count_lines.py --within tools/size.txt

protos: setup
	$(BIN)/python protos/generate.py

docs: setup
	$(BIN)/python docs/generate.py

# The documentation as pages for a browser, in site/; `zensical build` makes them of the same file.
site: setup
	NO_MKDOCS_2_WARNING=1 PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/mkdocs build --strict

# Wheel and source archive in dist/, then the wheel with each of these extras in an environment of its
# own, which needs a package index; EXTRAS= builds and looks at the files only.
EXTRAS ?= recommend,server,authority,client,lab
dist: setup
	$(BIN)/python tools/dist.py --extras "$(EXTRAS)"

bench: setup
	for file in benchmarks/bench_*.py; do $(BIN)/python $$file || exit 1; done

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis dist
