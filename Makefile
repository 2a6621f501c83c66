# `make demo` trains and reports a first network, `make test` runs the tests. Both install what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt --editable
# `make test CPU_MINUTES=N` fails where it takes more CPU time than that.
CPU_MINUTES ?=

.PHONY: demo test test-slow test-lowest results bench docs format lock sbom audit clean

demo: $(VENV)/installed
	$(BIN)/dsnet demo --overwrite

test: $(VENV)/installed-dev
	$(BIN)/python tests/suite.py $(if $(CPU_MINUTES),--cpu-minutes $(CPU_MINUTES))

test-slow: $(VENV)/installed-docs
	$(BIN)/pytest -m slow

# The quick tests with the lowest versions that pyproject.toml admits, in an environment that is removed afterwards.
LOWEST := $(or $(TMPDIR),/tmp)/dsnet-lowest
test-lowest:
	rm -rf $(LOWEST)
	$(PYTHON) -m venv $(LOWEST)
	$(PYTHON) tools/lowest.py > $(LOWEST)/lowest.txt
	$(LOWEST)/bin/python -m pip install --quiet --constraint constraints.txt --constraint $(LOWEST)/lowest.txt torch numpy
	$(LOWEST)/bin/python -m pip install --quiet --constraint constraints.txt --constraint $(LOWEST)/lowest.txt --editable '.[dev,openvino]'
	OMP_NUM_THREADS=1 $(LOWEST)/bin/python -m pytest -n auto --dist worksteal -m 'not slow'
	rm -rf $(LOWEST)

# Trains the runs of the paper's experiments and of the demo's networks, and writes their pages. Other pages in docs/results name their own
# commands. It takes many hours on two cores. DATA is the folder of cifar-10-batches-bin, imagenette and BCCD; Fashion-MNIST comes from Debian's
# package dataset-fashion-mnist.
results: $(VENV)/installed
	@test -n "$(DATA)" || { echo "give the folder of cifar-10-batches-bin, imagenette and BCCD: make results DATA=folder"; exit 2; }
	$(BIN)/dsnet reproduce motivation latency main ieb temperature losses sgs gate_design gate_distribution \
	  supernet_mbnet supernet_resnet gate_reading_mbnet gate_reading_resnet transfer efficientnet \
	  --root "$(DATA)" --workers 2 --export docs/results/paper
	$(BIN)/dsnet reproduce universal detection --seeds 0 --root "$(DATA)" --workers 2 --export docs/results/paper
	$(BIN)/dsnet reproduce main --longer 2 --seeds 0 --root "$(DATA)" --workers 2 --export docs/results/paper
	for model in ds_mobilenet_v1_tiny ds_resnet_tiny; do \
	  for seed in 0 1; do \
	    $(BIN)/dsnet train --config cifar10_$$model --data.root "$(DATA)" --seed $$seed \
	      --out runs/cifar10_$$model-$$seed || exit 1; \
	  done; \
	  $(BIN)/dsnet eval runs/cifar10_$$model-0 runs/cifar10_$$model-1 --export docs/results/cifar10_$$model || exit 1; \
	done
	for router in cheap_first threshold gate; do \
	  $(BIN)/dsnet train --stage gate --from runs/cifar10_ds_mobilenet_v1_tiny-0 --sgs.router $$router --sgs.targets correctness \
	    --out runs/routers/$$router || exit 1; \
	done
	$(BIN)/dsnet bench runs/routers/cheap_first --routers runs/routers/threshold runs/routers/gate --repeats 150 --runtimes onnx \
	  --root "$(DATA)" --export docs/results/bench_routers
	$(BIN)/python benchmarks/gate_codes.py runs/cpu/runs/resnet-supernet-seed*-* runs/cpu/runs/mbnet-supernet-seed*-* \
	  --export docs/results/gate_codes
	for seed in 0 1 2; do $(BIN)/dsnet demo --seed $$seed --out runs/demo$$seed || exit 1; done
	$(BIN)/dsnet eval runs/demo0 runs/demo1 runs/demo2 --export docs/results/demo
	$(BIN)/dsnet bench runs/demo0 --runtimes onnx --paths all --repeats 200 --export docs/results/bench_demo

bench: $(VENV)/installed
	$(BIN)/python benchmarks/forward_paths.py
	$(BIN)/python benchmarks/stage1.py
	$(BIN)/python benchmarks/memory_format.py
	$(BIN)/python benchmarks/stage2.py
	$(BIN)/python benchmarks/runtime.py --export docs/results/runtime

# The documentation as a site in site/, with a reference of the Python names.
docs: $(VENV)/installed-docs
	$(BIN)/mkdocs build

format: $(VENV)/installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Exact versions and digests of all packages but torch, chosen anew: lock.txt.
lock: $(VENV)/installed-dev
	$(BIN)/python tools/lock.py

# What is installed, as CycloneDX JSON.
sbom: $(VENV)/installed-dev
	mkdir -p build
	$(BIN)/python tools/sbom.py > build/sbom.json

# Known vulnerabilities of the versions in lock.txt, by a tool in an environment of its own.
audit:
	$(PYTHON) -m venv build/audit
	build/audit/bin/python -m pip install --quiet pip-audit
	build/audit/bin/pip-audit --strict --disable-pip --require-hashes --requirement lock.txt

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "dsnet needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) '.[train]'
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(INSTALL) '.[dev]'
	touch $@

$(VENV)/installed-docs: $(VENV)/installed-dev
	$(INSTALL) '.[docs]'
	touch $@

clean:
	rm -rf $(VENV)
