SPEC ?= config/examples/digits/spec.yaml
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
# Whoever looks on sees what is downloaded, how large it is and how far it is.
QUIETLY := $(shell test -t 2 || echo --quiet)

# Where it is set, each of a thousand processes that the tests start would compile our modules again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: $(shell awk -F: '/^[a-z-]+:.*\#\# / {print $$1}' Makefile)

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.installed  ## make the virtual environment, with everything in it
$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installs torch, TorchServe, its Java, Locust and what these need into $(VENV): some 150 packages and 2.5 GB," \
		"and several GB more where pip finds the torch for CUDA"
	$(BIN)/pip install $(QUIETLY) --constraint constraints.txt --editable '.[dev]'
	@$(BIN)/python -m marina.server.java.make_class_archive >/dev/null || echo "note: without this archive, each server starts half a second later"
	@command -v $${CXX:-g++} >/dev/null || echo "note: no g++ here; 'compile: aot' and 'jit' need one (apt-get install g++)"
	@touch $@

check: setup  ## print the spec with every default filled in, or every error in it  (SPEC=FILE)
	$(BIN)/marina check '$(SPEC)'

demo: setup  ## do every step once: package, serve, load, verdict, manifests, verify  (SPEC=FILE)
	$(BIN)/marina demo '$(SPEC)'

doctor: setup  ## show what is missing here, which verbs need it, and what to type
	$(BIN)/marina doctor

init: setup  ## make a folder with a spec and a sample to start from  (NAME=mine SOURCE=torchvision:resnet18)
	$(BIN)/marina init $(if $(SOURCE),--source '$(SOURCE)') $(if $(NAME),'$(NAME)')

package: setup  ## compile the model into a checked MAR under build/  (SPEC=FILE)
	$(BIN)/marina package '$(SPEC)'

serve: setup  ## run the server until Ctrl-C  (SPEC=FILE)
	$(BIN)/marina serve '$(SPEC)'

loadtest: setup  ## say whether a server meets the objective: PASS, FAIL or INVALID  (SPEC=FILE RATE=50)
	$(BIN)/marina loadtest '$(SPEC)' $(if $(RATE),--rate $(RATE))

calibrate: setup  ## find the highest rate that meets the objective  (SPEC=FILE)
	$(BIN)/marina calibrate '$(SPEC)'

compare: setup  ## say whether a package is worse than another one  (AGAINST=old.mar SPEC=FILE)
	$(BIN)/marina compare '$(SPEC)' $(if $(AGAINST),--against '$(AGAINST)')

manifests: setup  ## write Kubernetes manifests under build/  (SPEC=FILE)
	$(BIN)/marina manifests '$(SPEC)'

simulate: setup  ## show how the autoscaler follows traffic, without a cluster  (SPEC=FILE ARGS='--step 2.2')
	$(BIN)/marina simulate '$(SPEC)' $(ARGS)

verify: setup  ## check manifests, without a cluster  (SPEC=FILE)
	$(BIN)/marina verify '$(SPEC)' $(ARGS)

deploy: setup  ## apply the manifests to a cluster, and wait until the pods serve  (SPEC=FILE CONTEXT=C)
	$(BIN)/marina deploy '$(SPEC)' $(if $(CONTEXT),--context '$(CONTEXT)')

rollback: setup  ## go back to the revision that ran before  (SPEC=FILE CONTEXT=C)
	$(BIN)/marina rollback '$(SPEC)' $(if $(CONTEXT),--context '$(CONTEXT)')

image: setup  ## build a container image of the package  (SPEC=FILE ARGS=--push)
	$(BIN)/marina image '$(SPEC)' $(ARGS)

image-cuda: setup  ## build the CUDA image without the model, which is mounted when it runs  (SPEC=FILE)
	$(BIN)/marina image '$(SPEC)' --target cuda --model-at-runtime $(ARGS)

wheels: setup  ## download what an image is installed from, for builds without an index  (EXTRA=serve)
	$(BIN)/python docker/install.py download $(or $(EXTRA),serve) build/wheels

test: setup  ## run all tests; those that fail beside others run once more alone  (ARGS for pytest)
	$(BIN)/pytest --quiet --processes 4 $(ARGS)

quick: setup  ## run the tests that need no server and no compiler  (ARGS for pytest)
	$(BIN)/pytest --quiet --processes 3 -m "not slow" --ignore tests/e2e $(ARGS)

bench-serve: setup  ## ResNet-50 over HTTP: requests/s, compared with others and with the ceiling
	$(BIN)/python tests/bench/bench_serve.py $(ARGS)

bench-lengths: setup  ## requests of many lengths: in buckets, dynamic, and padded to the largest
	$(BIN)/python tests/bench/lengths/bench_lengths.py $(ARGS)

bench-kinds: setup  ## twelve kinds of models, from their files to a verdict without an edit
	$(BIN)/python tests/bench/kinds/bench_kinds.py $(ARGS)

bench-libraries: setup  ## models of libraries, from their users' files to an answer, compared with the library's own
	$(BIN)/python tests/bench/kinds/library_kinds.py $(ARGS)

bench-overhead: setup  ## what the tensor handler costs, compared with a handler that does nothing
	$(BIN)/python tests/bench/bench_overhead.py $(ARGS)

bench-parts: setup  ## the parts of an answer, each with and without its optimisation
	$(BIN)/python tests/bench/bench_parts.py

bench-peers: setup  ## the same model behind FastAPI, LitServe, BentoML and Ray Serve
	$(BIN)/python tests/bench/bench_peers.py $(ARGS)

bench-start: setup  ## cold start of ResNet-50, with aot and with jit
	$(BIN)/python tests/bench/bench_start.py $(ARGS)

bench-verdict: setup  ## how often a verdict is wrong, for queues whose p99 is known
	$(BIN)/python tests/bench/bench_verdict.py $(ARGS)

bench-knee: setup  ## how often a calibration's interval holds the true knee, and how long it measures
	$(BIN)/python tests/bench/bench_knee.py $(ARGS)

bench-compare: setup  ## how often a comparison is wrong, for pairs whose difference is known
	$(BIN)/python tests/bench/comparing/bench_compare.py $(ARGS)

bench-gate: setup  ## how often a rollout's gate is wrong on live traffic, beside the rules of others
	$(BIN)/python tests/bench/gating/bench_gate.py $(ARGS)

bench-rollout: setup  ## releases of each kind through a gate, with real servers  (ARGS='--each 1')
	$(BIN)/python tests/bench/gating/bench_rollout.py $(ARGS)

bench-front: setup  ## what the door, or a proxy, costs in front of TorchServe: rate, p50, CPU time
	$(BIN)/python tests/bench/bench_front.py $(ARGS)

bench-gateway: setup  ## keys, and a measured limit at twice the knee, with a real Envoy  (ARGS='--requests 1000')
	$(BIN)/python tests/bench/bench_gateway.py $(ARGS)

bench-tracing: setup  ## what traces cost, with 1 % of the requests, with all, and with a dead collector
	$(BIN)/python tests/bench/bench_tracing.py $(ARGS)

bench-drain: setup  ## requests lost at a stop, with and without the supervisor  (ARGS='--stops 20')
	$(BIN)/python tests/bench/bench_drain.py $(ARGS)

bench-drill: setup  ## requests lost when pods and nodes are taken away  (ARGS='--drills 5 --kinds evict')
	$(BIN)/python tests/bench/drilling/bench_drill.py $(ARGS)

bench-adopt: setup  ## old archives stopped under load, adopted and under TorchServe alone  (ARGS='--stops 5 --kinds stream')
	$(BIN)/python tests/bench/bench_adopt.py $(ARGS)

bench-ci: setup  ## pull requests judged on this machine: equal, slower, wrong  (ARGS='--equal 5 --slow 5 --wrong 2')
	$(BIN)/python tests/bench/bench_ci.py $(ARGS)

bench-text: setup  ## language models: a step and a prompt, by Marina's engines and others  (ARGS=--quick)
	$(BIN)/python tests/bench/text/bench_text.py $(ARGS)

bench-clients: setup  ## what the load test and guidellm measure of the same server  (ARGS='--only fake')
	$(BIN)/python tests/bench/text/bench_clients.py $(ARGS)

check-vllm: setup  ## test what runs vLLM with a real vLLM  (VLLM_PYTHON=FILE, a Python that has it)
	VLLM_PYTHON='$(VLLM_PYTHON)' $(BIN)/pytest --quiet -rs tests/handlers/generation/test_generation_vllm_real.py tests/e2e/serving/test_text_vllm.py

check-gpu: setup  ## package and serve on this machine's GPU, with every `compile`
	$(BIN)/pytest --quiet -rs tests/gpu $(ARGS)

bench-generator: setup  ## how much the load generator can send, compared with wrk
	$(BIN)/pytest --quiet -s tests/bench/bench_generator.py

smoke: setup  ## install the wheel with only its own dependencies, and start it
	rm -rf build/smoke && $(PYTHON) -m venv build/smoke
	build/smoke/bin/pip install --quiet --constraint constraints.txt .
	cd build && smoke/bin/marina --help >/dev/null && smoke/bin/marina check '../$(SPEC)' >/dev/null
	build/smoke/bin/marina check --fields | diff - build/smoke/share/doc/marina/reference/spec.md
	mkdir build/smoke/empty && cd build/smoke/empty && ../bin/marina --version && ! ../bin/marina check 2>error && grep -q '../bin/marina init FOLDER' error
	cd build/smoke/empty && for each in digits language; do ../bin/marina check "$$(../bin/python -c 'import marina.config.load as c, pathlib; print(pathlib.Path(c.__file__).parent)')/examples/$$each/spec.yaml" >/dev/null || exit 1; done
	rm -rf build/smoke build/lib build/bdist.*

lint: setup  ## check style, types, and who imports whom
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy docker/install.py docker/bom.py
	$(BIN)/mypy docs/generate.py
	$(BIN)/mypy --config-file tests/bench/mypy.ini tests/bench/*.py tests/bench/*/*.py
	$(BIN)/hadolint docker/Dockerfile
	$(BIN)/shellcheck docker/base.sh .ci/run
	$(BIN)/lint-imports --no-logo

format: setup  ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

jar: setup  ## compile the Java classes again that run inside TorchServe  (needs a JDK 17)
	$(BIN)/python tests/server/marina_jar.py
	$(BIN)/python -m marina.server.java.make_class_archive

pictures: setup  ## make the README's pictures again  (SPEC=FILE)
	$(BIN)/python docs/pictures/make.py '$(SPEC)' $(ARGS)

docs: setup  ## write the reference from the code, and build the site of docs/ into build/site
	$(BIN)/python docs/generate.py
	$(BIN)/zensical build --clean --strict
	find build/site -name '*.py' -delete

golden: setup  ## write the golden files and the generated pages of docs/ again
	$(BIN)/python docs/generate.py
	MARINA_GOLDEN=write $(BIN)/pytest --quiet tests/config/test_render.py tests/config/test_schema.py tests/k8s/manifests/test_k8s_golden.py

clean:  ## remove what was built; keep the virtual environment
	rm -rf build
