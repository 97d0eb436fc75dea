# Each target does its own set-up into .venv with pip; that is quick when it is already done.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PEERS := .venv-bench/.ready
BROWSER := $(VENV)/.browser
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# Compiled modules are stored whatever the machine's setting: each test worker would compile all tests anew, and each
# process that a test starts the package.
export PYTHONDONTWRITEBYTECODE =

.PHONY: demo test ruff mypy pytest lint e2e bench mutants studies clean

demo: $(READY)
	$(BIN)/crossward demo

# The browser is installed while pip works, and mypy runs beside the tests.
test:
	$(MAKE) --jobs=2 $(READY) $(BROWSER)
	$(MAKE) ruff
	$(MAKE) --jobs=2 mypy pytest

lint: ruff mypy

ruff: $(READY)
	$(BIN)/ruff check crossward tests benchmarks studies
	$(BIN)/ruff format --check crossward tests benchmarks studies

mypy: $(READY)
	$(BIN)/mypy

pytest: $(READY) $(BROWSER)
	$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder -m "not e2e" --durations 15

e2e: $(READY)
	$(BIN)/python -m crossward.testing.e2e
	$(BIN)/pytest tests/e2e
	$(BIN)/pytest tests --ignore tests/e2e -m e2e

# Wrong versions of the package, each of which a test must notice; half an hour, not a part of CI.
mutants: $(READY)
	$(BIN)/python tests/mutants/run.py

# Long comparisons on real images, in order; a run that was cut off goes on. CROSSWARD_DATA names the folder of the data.
STUDIES := pbc_fedbm pbc_imbalance ham_hospitals pbc_fedcd pbc_fedcd_low_rate pbc_fedcd_long pbc_privacy pbc_fedbm_crop cifar_niid_bench
STUDIES_OUT ?= runs/studies
studies: $(READY)
	for name in $(STUDIES); do $(BIN)/crossward study run studies/$$name.toml --out $(STUDIES_OUT) --prune || exit 1; done

bench: $(READY) $(PEERS)
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/methods.py

# pip compiles every module on one core, which is half of its time. Here all cores do, without what hardly anybody
# imports; what is left out is compiled when it is imported, and what cannot be compiled stays as it is.
UNCOMPILED := /tests/|/transformers/models/|/ray/
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile -c constraints.txt -e ".[dev,deploy,privacy,dicom,export,tensorboard,mlflow,text,pretrained,report,dashboard,tune,cluster,simulate]"
	$(BIN)/python -m compileall -qq -j 0 -x '$(UNCOMPILED)' $(VENV)/lib crossward || true
	touch $@

# Tests look at the report in Debian's chromium, with axe-core. Where neither can be installed, those tests are skipped
# and say which command would bring them.
$(BROWSER):
	mkdir -p $(VENV)
	command -v chromium || { test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -y -qq chromium; } || true
	npm install --silent --no-save --prefix $(VENV)/npm axe-core@4.14.0 || true
	touch $@

# Other people's frameworks, for side-by-side measurements only.
$(PEERS): benchmarks/requirements-peers.txt
	test -x .venv-bench/bin/python || $(PYTHON) -m venv .venv-bench
	.venv-bench/bin/pip install --quiet -r $<
	touch $@

clean:
	rm -rf $(VENV) .venv-bench .mypy_cache .ruff_cache .pytest_cache build *.egg-info
