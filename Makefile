SPEC ?= config/examples/digits/spec.yaml
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: bench-drain bench-generator bench-start help setup check package serve loadtest calibrate test smoke lint format golden clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.installed  ## one virtual environment with everything in it
$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@command -v $${CXX:-g++} >/dev/null || echo "note: no g++ here; 'compile: aot' and 'jit' need one (apt-get install g++)"
	@touch $@

check: setup  ## the completed spec, or every error in it            (SPEC=FILE)
	$(BIN)/marina check $(SPEC)

package: setup  ## the model as a verified MAR under build/             (SPEC=FILE)
	$(BIN)/marina package $(SPEC)

serve: setup  ## a running server, until Ctrl-C                     (SPEC=FILE)
	$(BIN)/marina serve $(SPEC)

loadtest: setup  ## PASS, FAIL or INVALID against the objective        (SPEC=FILE RATE=50)
	$(BIN)/marina loadtest $(SPEC) $(if $(RATE),--rate $(RATE))

calibrate: setup  ## the highest rate that meets the objective         (SPEC=FILE)
	$(BIN)/marina calibrate $(SPEC)

test: setup  ## all tests
	$(BIN)/pytest --quiet $(ARGS)

bench-start: setup  ## cold start of ResNet-50, aot against jit
	$(BIN)/python tests/bench/bench_start.py

bench-drain: setup  ## requests lost at a stop, with and without the supervisor
	$(BIN)/python tests/bench/bench_drain.py

bench-generator: setup  ## what the load generator can send, with wrk beside it
	$(BIN)/pytest --quiet -s tests/bench/bench_generator.py

smoke: setup  ## the wheel with its own dependencies alone starts
	rm -rf build/smoke && $(PYTHON) -m venv build/smoke
	build/smoke/bin/pip install --quiet --constraint constraints.txt .
	cd build && smoke/bin/marina --help >/dev/null && smoke/bin/marina check ../$(SPEC) >/dev/null
	rm -rf build/smoke build/lib build/bdist.*

lint: setup  ## style, types and module sizes
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tests/sizes.py

format: setup  ## put the code into the common form
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

golden: setup  ## write the golden files and docs/spec.md again
	MARINA_GOLDEN=write $(BIN)/pytest --quiet tests/test_render.py tests/test_reference.py

clean:  ## remove what was built, keep the virtual environment
	rm -rf build
