# Everything is built inside the checkout: .venv (core and tools), .venv-vllm (engine), .venv-sglang (the other engine,
# for its own targets), .venv-docs (the documentation site), .engine-* (older engines), .models (tiny models).
# Targets may be made again at any time; what is up to date costs a moment.

SHELL := /bin/bash
PYTHON ?= python3
CORE := .venv/bin/python
ENGINE := .venv-vllm/bin/python
SGLANG := .venv-sglang/bin/python
PYTEST_ARGS ?=
POOL ?= nfs
export PYTHON
export PYTHONHASHSEED := 0

TYPED := kvhub kvhub_pytest.py $(wildcard plugins/*/kvhub_* kernels/kvhub_* adapters/*/kvhub_*)
CORE_TESTS := $(wildcard tests plugins adapters/kvhub-front) $(addprefix --ignore ,tests/e2e tests/models tests/harness tests/sglang_e2e)
JOBS ?= 3
# Two halves of about the same time, the first beside what `make test` runs of SGLang.
ENGINE_WHOLE := $(wildcard $(addprefix tests/e2e/test_e2e_,faults.py models.py pd.py stream.py))
ENGINE_PARTS := $(wildcard kernels adapters/kvhub-vllm tests/models tests/harness) $(filter-out $(ENGINE_WHOLE),$(wildcard tests/e2e/test_*.py))

.PHONY: demo demo-sglang demo-cross sglang test test-core test-beside test-alone test-vllm test-vllm-parts test-vllm-whole test-sglang test-sglang-short test-engines test-slow mutants docs test-packages test-nfs test-nfs-short lint venv engine models bench-kernels bench-sglang bench-lookup bench-stores bench-vllm bench-stream bench-codecs bench-wire clean
.NOTPARALLEL:

# POOL=nfs keeps chunks in a directory, POOL=s3 in a bucket of an S3 server that is started for it.
demo: engine models
	@if [ "$(POOL)" = s3 ]; then bash tests/env/s3_server.sh; fi
	PYTHONPATH=tests $(ENGINE) -m demo.run --pool $(POOL) $(DEMO_ARGS)

# The same on SGLang: prefill and decode through one pool.
demo-sglang: sglang
	@$(SGLANG) tests/models/build.py .models tiny-llama
	PYTHONPATH=tests $(SGLANG) -m demo_sglang.pd $(DEMO_ARGS)

# One pool for vLLM and SGLang: each takes what the other stored.
demo-cross: sglang engine models
	PYTHONPATH=tests $(SGLANG) -m demo_sglang.cross $(DEMO_ARGS)

# All that must hold, and what CI runs.  Environments are built behind lint and the core's tests; what measures time waits
# until they are ready.
test:
	@bash tests/env/ahead.sh $(MAKE) lint test-beside models sglang test-alone test-nfs-short test-engines

venv:
	@bash tests/env/venv.sh

engine:
	@bash tests/env/engine.sh

sglang:
	@bash tests/env/sglang.sh

models: engine
	@$(ENGINE) tests/models/build.py .models

lint: venv
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	$(CORE) -m mypy $(TYPED)

# Most of these wait most of their time, so several run beside one another.  Many are laws about time, and on a busy
# machine one of them may fail for want of a core: what failed is told, and tried once more with nothing beside it; but
# only after a run that came to its end (status 1), so that nothing stays untried.  What measures time runs alone at once.
BESIDE := -m "not vllm and not slow and not alone" --timeout 180 $(CORE_TESTS)
test-core: test-beside test-alone

test-beside: venv
	@status=0; $(CORE) -m pytest -n $(JOBS) --dist loadscope $(BESIDE) $(PYTEST_ARGS) || status=$$?; \
	if [ $$status -eq 1 ] && [ -z "$(PYTEST_ARGS)" ]; then \
	    echo "== once more, alone: what failed beside others"; \
	    $(CORE) -m pytest --last-failed --last-failed-no-failures none $(BESIDE); \
	else exit $$status; fi

test-alone: venv
	$(CORE) -m pytest -m "alone and not vllm and not slow" --timeout 180 $(CORE_TESTS) $(PYTEST_ARGS)

test-vllm: test-vllm-parts test-vllm-whole

test-vllm-parts: engine models
	$(ENGINE) -m pytest -m "not slow" --timeout 600 $(ENGINE_PARTS) $(PYTEST_ARGS)

test-vllm-whole: engine models
	$(ENGINE) -m pytest -m "not slow" --timeout 600 $(ENGINE_WHOLE) $(PYTEST_ARGS)

# Two rows of engines' tests beside one another, each of which leaves a core idle for half of its time: half of vLLM in the
# one, SGLang and the other half in the other, which is told at the end.
test-engines: sglang models
	@log=$$(mktemp); $(MAKE) test-sglang-short test-vllm-parts >"$$log" 2>&1 & other=$$!; status=0; \
	$(MAKE) test-vllm-whole || status=$$?; wait $$other || status=$$?; cat "$$log"; rm -f "$$log"; exit $$status

# What `make test` runs with SGLang: the adapter without a server, both engines' namespaces, and both demos in short, on
# servers that they share.  The rest takes half a minute per server.
test-sglang-short: sglang engine models
	$(SGLANG) -m pytest -m "not slow" --timeout 600 adapters/kvhub-sglang tests/sglang_e2e/test_sglang_spaces.py $(PYTEST_ARGS)
	PYTHONPATH=tests $(SGLANG) -m demo_sglang.short

test-sglang: sglang engine models
	$(SGLANG) -m pytest -m "not slow" --timeout 900 adapters/kvhub-sglang tests/sglang_e2e $(PYTEST_ARGS)

# The long forms of what `make test` runs in short: minutes to half an hour.
test-slow: venv
	$(CORE) -m pytest -m "slow and not vllm" --timeout 1800 $(CORE_TESTS) $(PYTEST_ARGS)
	$(CORE) tests/contracts/mutants.py

# Seeded faults against every contract: each must be caught, and what is correct must pass (minutes).
mutants: venv
	$(CORE) tests/contracts/mutants.py
	$(CORE) -m pytest -q --timeout 600 tests/engine/test_engine_mutants.py

# The documentation site in build/docs, with the reference made from docstrings; every warning is an error.
docs:
	@bash tests/env/docs.sh
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build
	@echo "build/docs/index.html"

# Each package alone, built by way of its sdist, at its lowest declared versions and with its own tests (a quarter of an hour
# and 6 GB, most of it torch, which the registry has with CUDA only; `make test` has one package of it).
test-packages: venv
	$(CORE) tests/packaging/floors.py

# On real NFS, inside User-Mode Linux (root, Debian packages: see the script); says why where it cannot.
test-nfs: venv
	@tests/uml/run.sh || [ $$? -eq 77 ]

# What one client saves another finds, errors of the medium, leases between machines: what `make test` runs of it.  A machine
# on which User-Mode Linux does not boot has no real NFS to test; `make test-nfs` takes that for a failure.
test-nfs-short: venv
	@status=0; tests/uml/run.sh -k "test_what_one_client_saves or C19_files or lease_excludes or TestMediumOnNfs" || status=$$?; \
	case $$status in 0|77|78) ;; *) exit $$status ;; esac

bench-kernels: engine
	$(ENGINE) tests/benchmarks/kernels.py $(BENCH_ARGS)

# How fast pages move between SGLang's host pool and slots, and are converted.
bench-sglang: sglang
	$(SGLANG) tests/benchmarks/sglang_pages.py $(BENCH_ARGS)

bench-lookup: venv
	$(CORE) tests/benchmarks/lookup.py $(BENCH_ARGS)

bench-vllm: engine
	@$(ENGINE) tests/models/build.py .models tiny-llama-gqa-bench
	@sh tests/benchmarks/lmcache_env.sh .venv-vllm .venv-lmcache
	$(ENGINE) tests/benchmarks/vllm_peer.py --model .models/tiny-llama-gqa-bench \
	    --peer-python .venv-lmcache/bin/python $(BENCH_ARGS)

# Veth needs root and iproute2; without them that medium is left out.
bench-wire: venv
	@sh tests/benchmarks/nixl_env.sh .venv-nixl
	$(CORE) tests/benchmarks/wire.py --nixl-python .venv-nixl/bin/python $(BENCH_ARGS)

# Direct reads and writes are held against fio where it is installed, against a loop of our own elsewhere; the file tiers
# of vLLM and LMCache are measured where `make bench-vllm` has left their environment.
bench-stores: venv
	$(CORE) tests/benchmarks/stores.py $(addprefix --peer-python ,$(wildcard .venv-lmcache/bin/python)) $(BENCH_ARGS)

bench-codecs: venv
	$(CORE) tests/benchmarks/codecs.py $(BENCH_ARGS)

bench-stream: engine
	@$(ENGINE) tests/models/build.py .models tiny-llama-gqa-bench
	$(ENGINE) tests/benchmarks/stream.py $(BENCH_ARGS)

clean:
	rm -rf .venv .venv-docs .ucx-system .s3-server .venv-vllm .venv-sglang .venv-lmcache .venv-nixl .engine-* .models .demo build dist .pytest_cache .mypy_cache .ruff_cache
	find . -name '*.egg-info' -not -path './.git/*' -prune -exec rm -rf {} +
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +
