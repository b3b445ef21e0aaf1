# make test        the package and all its extras, then every test
# make demo        train in both frameworks
# make bench       beside the peers, in an environment of its own
# make lint        ruff, cython-lint, mypy
# make test-core   NumPy alone, as users of another PYTHON get it: make test-core PYTHON=python3.13
# make test-debug  the same tests with bounds checks compiled in
# make test-tsan   what threads do at once, under ThreadSanitizer (GCC, Linux); see tests/tsan.sh
# make clean       remove what was built; the environments stay, and build again when next used
#
# Environments are made by PYTHON (3.11 or newer for Tianshou) and lie in VENV and the like.

PYTHON ?= python3
VENV ?= .venv
VENV_BENCH ?= .venv-bench
VENV_CORE ?= .venv-core-$(shell $(PYTHON) -c "import sys; print('%d.%d' % sys.version_info[:2])")
VENV_DEBUG ?= .venv-debug

EXTRAS := sb3,tianshou,dev
BUILD := pyproject.toml setup.py $(wildcard kary_replay/*.pyx kary_replay/*.pxd kary_replay/*.h)
PACKAGE := $(BUILD) $(wildcard kary_replay/*.py* adapters/*.py adapters/*/*.py)

# $(call install,environment,constraints,what): everything in one call, so that pip settles on
# one torch. A stamp beside the packages says that it was done. Setuptools would put files into
# the package that it finds in an old build folder.
define install
rm -rf build
$(PYTHON) -m venv $(1)
$(1)/bin/python -m pip install --quiet "pip>=23"
$(1)/bin/python -m pip install --quiet --constraint $(2) $(3)
touch $(1)/.installed
endef

.PHONY: test demo bench lint test-core test-debug test-tsan clean

test: $(VENV)/.installed
	$(VENV)/bin/python -m pytest $(ARGS)

demo: $(VENV)/.installed
	$(VENV)/bin/python examples/demo.py $(ARGS)

bench: $(VENV_BENCH)/.installed
	mkdir -p out
	$(VENV_BENCH)/bin/python -m pytest bench --benchmark-json=out/bench.json $(ARGS)
	$(VENV_BENCH)/bin/python bench/report.py out/bench.json

lint: export PATH := $(abspath $(VENV)/bin):$(PATH)
lint: $(VENV)/.installed
	ruff check
	ruff format --check
	cython-lint kary_replay/*.pyx kary_replay/*.pxd
	mypy

# Not by `python -m pytest`, which would put the source folder in front of what was installed.
test-core: $(VENV_CORE)/.installed
	$(VENV_CORE)/bin/pytest $(ARGS)

test-debug: export KARY_REPLAY_DEBUG = 1
test-debug: $(VENV_DEBUG)/.installed
	$(VENV_DEBUG)/bin/pytest $(ARGS)

test-tsan: $(VENV)/.installed
	PYTHON=$(VENV)/bin/python tests/tsan.sh $(ARGS)

$(VENV)/.installed: $(BUILD) constraints.txt
	$(call install,$(VENV),constraints.txt,--editable ".[$(EXTRAS)]")

$(VENV_BENCH)/.installed: $(BUILD) constraints-bench.txt
	$(call install,$(VENV_BENCH),constraints-bench.txt,--editable ".[bench]")

$(VENV_CORE)/.installed: $(PACKAGE) constraints.txt
	$(call install,$(VENV_CORE),constraints.txt,".[test]")

$(VENV_DEBUG)/.installed: $(PACKAGE) constraints.txt
	$(call install,$(VENV_DEBUG),constraints.txt,".[test]")

clean:
	rm -rf build dist *.egg-info kary_replay/*.so .venv*/.installed
	rm -rf .hypothesis .mypy_cache .pytest_cache .ruff_cache
