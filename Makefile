# setup, demo, web, wheel, book, sbom, test, test-runtimes, test-system, test-pages, chaos, test-arm, test-arm-kernels, test-rabbitmq, test-web, fuzz, hardware-table, check, bench, clean. Everything runs in .venv, which `setup` makes and the others call.
#
# Package indexes are yours: pip's own configuration is honoured (pip.conf, PIP_INDEX_URL, PIP_FIND_LINKS, ...), and npm's.
# The default index's torch for x86-64 Linux brings several GB of CUDA. For a CPU build, name an index that has one (it is
# searched besides yours, and a CPU build wins over a plain one of the same version):
#     make setup TORCH_INDEX=<address of a wheel index with CPU builds of torch>

SUPPORTED = import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))
PYTHON ?= $(shell for name in python3 python3.11 python3.12 python3.13 python3.14; do \
  $$name -c '$(SUPPORTED)' 2>/dev/null && { echo $$name; break; }; done)
TORCH_INDEX ?=
TORCH = torch==2.13.0
EXECUTORCH = executorch==1.5.1
ORT_TRAINING = onnxruntime-training-cpu==1.19.2
EXTRAS = coordinator,privacy,postgresql,fleet,onnxruntime,images,book,dev
STAMP = .venv/.ready
BIN = .venv/bin
# Compiled is what commands and agents import: the 27,000 files of all packages take a minute, and most are never used. What a
# device imports has to be: an agent that compiles while it starts takes 4 MB more, again at every start where Python may not
# write its files (PYTHONDONTWRITEBYTECODE).
DEVICE_COMPILED = numpy paho msgspec cryptography onnxruntime safetensors zstandard typing_extensions.py
COMPILED = $(DEVICE_COMPILED) torch sympy onnx executorch google sqlalchemy typer
OURS = edge coordinator export profiles
PIP = env PYTHONWARNINGS=ignore $(BIN)/python -m pip install --disable-pip-version-check --no-compile
# compile(environment's Python, packages in it): those that are not there are left out; what fails is compiled by who imports it.
# Libraries that pip has just written are then dropped from the page cache (edge/system/cached_libraries.py says why).
compile = cd "$$('$(CURDIR)/$(1)' -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" && \
  ls -d $(2) 2>/dev/null | xargs '$(CURDIR)/$(1)' -m compileall -qq -j 0 $(addprefix $(CURDIR)/,$(OURS)) || true; \
  '$(CURDIR)/$(1)' -m edge.system.cached_libraries $(DEVICE_COMPILED)
# pip's own lines and bars where somebody looks; elsewhere one line before a phase of setup, and one with its time after it.
PHASE = phase() { echo "setup: $$1"; shift; begun=$$(date +%s); quiet=--quiet; if test -t 1; then quiet=; fi; \
  "$$@" $$quiet && echo "setup:   done in $$(($$(date +%s) - begun)) s"; }; phase
TESTS ?= tests
PAGE_TESTS = tests/cli/test_documented_commands.py
RUNTIME_TESTS = tests/benchmarks tests/conformance tests/edge/runtimes tests/export
# Processes that share the tests out: two where there are two processors.
LANES ?= $(shell test "$$(nproc 2>/dev/null || echo 1)" -ge 2 && echo 2 || echo 0)
# Whole federations wait, too; with many at once leases and deadlines run out.
SYSTEM_LANES ?= $(shell expr 1 + $(LANES))
PYTEST = $(BIN)/python -m pytest -n $(LANES) --dist worksteal
# The most seconds that a test without a mark may take.
LIMIT_S ?= 2
SEEDS ?= 1-200
JOBS ?= 2
KEEP ?= runs/chaos
ARGS ?=
WEB = edge/web
WEB_SOURCES = $(wildcard $(WEB)/*.*) \
  $(shell find $(WEB)/src $(WEB)/public -type f 2>/dev/null)
HAS_NODE = command -v npm >/dev/null && node -e 'process.exit(parseInt(process.versions.node) < 18 ? 1 : 0)' 2>/dev/null
NO_NODE = needs node 18 or later with npm on PATH (Debian: nodejs npm)

.PHONY: setup demo web wheel book links sbom test test-runtimes test-system test-pages test-containers ort-training-if-possible chaos test-arm test-arm-kernels test-rabbitmq test-web test-web-here fuzz hardware-table check format bench clean runtime-executorch runtime-onnxruntime-training

setup: $(STAMP)

$(STAMP): pyproject.toml
	@test -n "$(PYTHON)" || { echo "setup: no Python 3.11 to 3.14 with venv on PATH (on Debian: python3-venv);" \
	  "install one, or name it: make setup PYTHON=..." >&2; exit 1; }
	@echo "setup: $$($(PYTHON) -V) into .venv, pip's own configuration decides where from"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@# A pip of 2025 or later looks for what fits in a third of the time. Where it cannot be had, the one that is there does.
	@$(PIP) --quiet --upgrade 'pip>=25' || true
	@# torch is named, so that torchvision, of the extra dev, takes the release that fits it, not a newer torch with it.
	@$(PHASE) "1 of 4: $(TORCH) (minutes, where it has to be fetched)" \
	  $(PIP) $(addprefix --extra-index-url ,$(TORCH_INDEX)) '$(TORCH)'
	@$(PHASE) "2 of 4: what coordinator, devices and tests need" \
	  $(PIP) $(addprefix --extra-index-url ,$(TORCH_INDEX)) '$(TORCH)' -e '.[$(EXTRAS)]'
	@# The wheel's own dependencies (1 GB of other backends) are not what its exporter imports; that is in the extra dev.
	@$(PHASE) "3 of 4: $(EXECUTORCH), for its exporter" $(PIP) --no-deps '$(EXECUTORCH)' || \
	  echo "setup: no executorch for this machine; its exporter's tests are skipped with that reason" >&2
	@echo "setup: 4 of 4: what every command imports is compiled"
	@$(call compile,$(BIN)/python,$(COMPILED))
	@echo "setup: ready; next: make demo"
	@touch $(STAMP)

demo: setup
	$(BIN)/apportion demo $(ARGS)

# Every test that is quick; one without a mark that is not fails. The rest is in the two tiers below. Tests of ONNX Runtime
# Training need its environment; where it cannot be made they are skipped with that reason.
test: setup ort-training-if-possible
	$(PYTEST) -m 'not slow' --limit-s $(LIMIT_S) --ignore=tests/boundaries $(TESTS) $(ARGS)

# Every method, layer and pass on every device runtime.
test-runtimes: setup ort-training-if-possible
	$(PYTEST) -m slow $(RUNTIME_TESTS) $(ARGS)

ort-training-if-possible: setup
	@$(MAKE) --no-print-directory runtime-onnxruntime-training || \
	  echo "no onnxruntime-training for this machine; its tests are skipped" >&2

# Whole federations: brokers, kills, databases, SSH, full disks, several coordinators.
test-system: setup ort-training-if-possible
	$(PYTEST) -n $(SYSTEM_LANES) -m slow $(addprefix --ignore=,$(RUNTIME_TESTS) $(PAGE_TESTS) tests/containers) tests $(ARGS)

# Every command of every page, as it is written there.
test-pages: setup
	$(PYTEST) -n $(SYSTEM_LANES) -m slow $(PAGE_TESTS) $(ARGS)

# Container files, Compose, chart and playbook of examples/: built and run in a chroot where the machine allows it.
test-containers: setup
	$(BIN)/python -m pytest -m slow tests/containers $(ARGS)

# Runs with faults, each from its seed: SEEDS="1 2 3" runs exactly those, JOBS of them at a time. The last line is the
# counts; the files of a seed that failed are in KEEP. docs/chaos.md
chaos: setup
	@$(BIN)/python -m tests.chaos --seeds '$(SEEDS)' --jobs $(JOBS) --keep '$(KEEP)'

# The device side on emulated aarch64 processors; fetches an aarch64 userland into .arm the first time.
test-arm: setup
	APPORTION_TEST_ARM=1 $(BIN)/python -m pytest tests/arm $(ARGS)

# What the kernels' inner loops take on ARM's cores, by models of them and by counts: no board, no userland.
test-arm-kernels: setup
	APPORTION_TEST_ARM=1 $(BIN)/python -m pytest tests/arm/test_inner_loops.py tests/arm/test_kernel_costs.py $(ARGS)

# A cluster of RabbitMQ 4 on this machine's loopback address; fetches it from Debian 13 into .rabbitmq the first time.
test-rabbitmq: setup
	APPORTION_TEST_RABBITMQ=1 $(BIN)/python -m pytest tests/rabbitmq $(ARGS)

# The page that phones join with. Its server needs the built page and no node.
web: $(WEB)/dist/index.html

$(WEB)/dist/index.html: $(WEB)/node_modules/.package-lock.json $(WEB_SOURCES)
	npm --prefix $(WEB) run --silent build
	@touch $@

$(WEB)/node_modules/.package-lock.json: $(WEB)/package-lock.json
	@$(HAS_NODE) || { echo "web: $(NO_NODE)" >&2; exit 1; }
	@# Not ci: it refuses a lock file without the packages of every platform, which the registry it was made with lacked.
	@# Versions and digests are the lock file's all the same, and it is not written.
	npm --prefix $(WEB) install --no-save --no-audit --no-fund
	@touch $@

# The wheel in dist/, with the page for phones where node is. An old build folder would add files that are gone.
wheel: setup
	@if $(HAS_NODE); then $(MAKE) --no-print-directory web; else echo "wheel: without the page for phones, it $(NO_NODE)" >&2; fi
	rm -rf build
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	@$(MAKE) --no-print-directory sbom

# The pages of docs/ as a site that works from a folder: open build/book/index.html. A warning, such as a dead link, ends it.
book: setup
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going --fresh-env --builder html docs build/book
	@echo "book: build/book/index.html"

# Addresses of other sites that pages name, to look at by hand; nothing is fetched.
links: setup
	@$(BIN)/python -m docs.book.links

# What the wheel's page bundles and what is installed beside it, with licences, as CycloneDX.
sbom: setup
	@$(BIN)/python -m tests.packaging.bill_of_materials --out dist/apportion.cdx.json

# The web agent's own checks, then its page in a browser. Chromium is found on PATH, or named: APPORTION_CHROMIUM.
test-web: setup
	@if $(HAS_NODE); then $(MAKE) --no-print-directory test-web-here; else echo "test-web: skipped, it $(NO_NODE)"; fi

test-web-here: web
	npm --prefix $(WEB) run --silent check
	npm --prefix $(WEB) test
	APPORTION_TEST_WEB=1 $(BIN)/python -m pytest tests/web $(ARGS)

# A million malformed messages against the coordinator's inbox, and 100,000 inputs against an agent's parsers.
fuzz: setup
	$(BIN)/python -m tests.fuzz.inbox_under_fire --count $(or $(MESSAGES),1000000)
	$(BIN)/python -m tests.fuzz.coverage_guided --runs $(or $(RUNS),100000) 2>/dev/null

# The table of docs/hardware from the files that owners of devices have shared; each is checked.
hardware-table: setup
	@$(BIN)/python -m benchmarks.hardware_table $(ARGS)

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/boundaries

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup
	$(BIN)/apportion bench step --model resnet20 --runtime onnxruntime --batch 32 --threads 1 $(ARGS)
	$(BIN)/apportion bench step --model conv2 --runtime onnxruntime --batch 32 --threads 1 $(ARGS)
	$(BIN)/apportion bench step --model vit --runtime onnxruntime --batch 32 --threads 1 $(ARGS)
	$(BIN)/apportion bench step --model lstm --runtime onnxruntime --batch 32 --threads 1 $(ARGS)

# A device that trains with ExecuTorch: the wheel without its dependencies (its C++ libraries need none, least of all torch),
# and the session library compiled against it. `apportion agent --runtime executorch` finds it there.
runtime-executorch: .venv-executorch/.ready

.venv-executorch/.ready: pyproject.toml $(wildcard edge/runtimes/executorch/native/* edge/runtimes/executorch/native/trainer/*)
	@test -n "$(PYTHON)" || { echo "runtime-executorch: no Python 3.11 to 3.14 with venv on PATH" >&2; exit 1; }
	@test -x .venv-executorch/bin/python || $(PYTHON) -m venv .venv-executorch
	.venv-executorch/bin/python -m pip install --no-compile --quiet --disable-pip-version-check -e .
	.venv-executorch/bin/python -m pip install --no-compile --quiet --disable-pip-version-check --no-deps '$(EXECUTORCH)'
	@$(call compile,.venv-executorch/bin/python,$(DEVICE_COMPILED) executorch/runtime executorch/extension)
	.venv-executorch/bin/python -m edge.runtimes.executorch.build
	@touch $@

# A device that trains with ONNX Runtime Training, and the exporter for it: the wheel without its dependencies (onnx, sympy,
# h5py, ...; nothing here uses them), in an environment of its own, because it writes over stock onnxruntime. x86-64 Linux.
runtime-onnxruntime-training: .venv-onnxruntime-training/.ready

.venv-onnxruntime-training/.ready: pyproject.toml
	@test -n "$(PYTHON)" || { echo "runtime-onnxruntime-training: no Python 3.11 to 3.14 with venv on PATH" >&2; exit 1; }
	@test -x .venv-onnxruntime-training/bin/python || $(PYTHON) -m venv .venv-onnxruntime-training
	.venv-onnxruntime-training/bin/python -m pip install --no-compile --quiet --disable-pip-version-check -e .
	.venv-onnxruntime-training/bin/python -m pip install --no-compile --quiet --disable-pip-version-check --no-deps '$(ORT_TRAINING)'
	@$(call compile,.venv-onnxruntime-training/bin/python,$(DEVICE_COMPILED))
	.venv-onnxruntime-training/bin/python -c "import edge.runtimes.onnxruntime_training.session as r; assert r.version() == '1.19.2'"
	@touch $@

clean:
	rm -rf $(WEB)/node_modules $(WEB)/dist
	rm -rf .arm .debian13 .debian13-arm .rabbitmq .venv .venv-executorch .venv-onnxruntime-training runs build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
