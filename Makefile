# The front door: bare `make` prints the pipeline in order.
.DEFAULT_GOAL := help
SHELL := setup/recipe.sh
.DELETE_ON_ERROR:

POLICY ?=
BITS ?= 8
MACHINE ?= virt
TARGET ?= local
RUNTIME ?= litert
AGENT ?= python
PYTHON311 ?=
DEMO_STEPS ?= 2000000
DEMO_RUNS ?= 2000
DEMO_EPISODES ?= 1000
TESTS ?= tests

ifneq ($(filter demo deploy bench,$(MAKECMDGOALS)),)
ifeq ($(strip $(TARGET)),)
$(error TARGET is empty. Allowed: local, host, user@host, user@host:port, @group. Type, for example: make $(firstword $(MAKECMDGOALS)) TARGET=pi@raspberrypi)
endif
endif
# A group of fleet.toml: TARGET=@arena.
GROUP := $(patsubst @%,%,$(filter @%,$(TARGET)))
ifneq ($(and $(GROUP),$(filter demo,$(MAKECMDGOALS))),)
$(error TARGET=$(TARGET) is a group of devices, and the demo is for one. Type: make demo TARGET=pi@raspberrypi)
endif

VENV := .venv
PYTHON := $(VENV)/bin/python
QUARL := $(VENV)/bin/quarl
# The stamp holds the folder's name: an environment that was moved, or whose Python is gone, is made again.
INSTALLED := $(VENV)/.installed
ifneq ($(CURDIR),$(shell test -x $(PYTHON) && cat $(INSTALLED) 2>/dev/null))
.PHONY: $(INSTALLED)
endif
PEERS := .venv-peers
AIRSIM := .venv-airsim
# A process a core and one more, for those that wait for a device; at most eight: each holds TensorFlow. A file's tests
# stay together, since they share devices.
PYTEST = PYTEST_XDIST_AUTO_NUM_WORKERS=$$(($$(nproc) + 1)) $(PYTHON) -m pytest -n auto --maxprocesses 8 --dist loadfile --no-loadscope-reorder

# POLICY=I names one policy; without it a command takes I, II and III (not zoo/benchmark).
POLICIES := $(if $(POLICY),$(POLICY),$(notdir $(patsubst %/policy.json,%,$(wildcard zoo/*/policy.json))))

.PHONY: help setup suites actorq robots airsim peers training-speed study study-quick report demo train convert deploy bench table docs wheel pi pi-stop test test-all lint format clean

help:
	@echo "From a policy to its report from a device, one line a step:"
	@echo
	@echo "  make demo                              all of it: set up, train Policy I, convert, deploy, measure, table"
	@echo
	@echo "  make setup                             $(VENV) from pinned packages, and the device's wheels"
	@echo "  make suites                            Box2D, Atari, PyBullet, MuJoCo, dm_control as further tasks"
	@echo "  make actorq                            Ray, for training with quantized actors: quarl actorq"
	@echo "  make airsim                            AirSim's own Python clients, in $(AIRSIM)"
	@echo "  make robots                            ROS 2's and MAVLink's messages: examples/ros2.py, examples/mavlink.py"
	@echo "  make train POLICY=I                    train a navigation policy         -> artifacts/I"
	@echo "  make convert BITS=8 [POLICY=III]       TFLite and ONNX, checked          -> artifacts/III/int8.tflite …"
	@echo "  make convert BITS=auto [MAX_LOSS=1]    the fewest bits that keep the return"
	@echo "  make deploy TARGET=pi@raspberrypi [POLICY=III] [BITS=8] [RUNTIME=litert] [AGENT=native] over SSH"
	@echo "  make deploy TARGET=@arena [POLICY=III] a group of fleet.toml, in phases      (docs/fleet.md)"
	@echo "  $(QUARL) bench latency --policy III [--target pi@raspberrypi]"
	@echo "  $(QUARL) bench memory --policy III   $(QUARL) bench success --policy III"
	@echo "  make bench [TARGET=…]                  the three of them, I, II and III  -> results/"
	@echo "  make table [WRITE=1]                   the committed tables; WRITE=1: README.md and docs/ made again from them"
	@echo "  make training-speed                    against Stable-Baselines3 (make peers)"
	@echo "  make study | make study-quick          what fewer bits cost every committed policy (make suites to measure again)"
	@echo "  make docs                              README.md and docs/ as a site             -> artifacts/site/index.html"
	@echo "  make wheel                             sdist and wheel, with the engine compiled -> dist/"
	@echo "  make report                            the findings as one page to read      -> results/report.html"
	@echo
	@echo "  make pi [MACHINE=raspi3b]              an emulated Raspberry Pi 3b: TARGET=pi@virtual;  make pi-stop"
	@echo
	@echo "  make test | make test-all | make lint | make clean"
	@echo
	@echo "TARGET=local (default) is an SSH server on this machine that the command starts itself."

# A device that does not answer is named before anything is trained or converted for it. The local one need not be
# asked, nor a group: a rollout says of each device whether it answers.
REACHED = $(if $(GROUP)$(filter local,$(TARGET)),,@$(QUARL) reach --target $(TARGET))
# What was typed, in the place of what fleet.toml says.
KEPT = $(if $(ACCEPT),--accept) $(if $(MAX_LOSS),--max-loss $(MAX_LOSS)) $(if $(PREFER),--prefer $(PREFER))
TYPED = $(if $(filter file,$(origin BITS)),,--bits $(BITS)) $(if $(filter file,$(origin AGENT)),,--agent $(AGENT)) \
  $(if $(filter file,$(origin RUNTIME)),,--runtime $(RUNTIME))
ROLLOUT ?=

# $(call install,FILE…): further pinned packages on top of requirements.txt.
define install
@bash -c '. setup/common.sh; install_requirements requirements.txt $(1) || refuse_packages'
endef

setup: $(INSTALLED)

$(INSTALLED): requirements.txt pyproject.toml
	@PYTHON311="$(PYTHON311)" bash setup/environment.sh

suites: $(INSTALLED)
	$(call install,requirements-suites.txt)
	@$(QUARL) tasks

actorq: $(INSTALLED)
	$(call install,requirements-actorq.txt)

robots: $(INSTALLED)
	$(call install,requirements-robots.txt)

airsim: $(AIRSIM)/.installed

$(AIRSIM)/.installed: requirements-airsim.txt | $(INSTALLED)
	@bash setup/airsim.sh $(AIRSIM)

peers: $(PEERS)/.installed

$(PEERS)/.installed: requirements-peers.txt requirements-executorch.txt | $(INSTALLED)
	@echo "Setting up $(PEERS): Stable-Baselines3, PyTorch, ExecuTorch, ncnn, MNN, OpenVINO, emlearn, about 1.4 GB …"
	@$(PYTHON) -m venv $(PEERS)
	@$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-peers.txt
	@$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-executorch.txt
	@touch $@

training-speed: $(INSTALLED) peers
	@$(QUARL) study speed

study: $(INSTALLED)
	@$(QUARL) study all --keep

study-quick: $(INSTALLED)
	@$(QUARL) study all --quick

report: $(INSTALLED)
	@$(QUARL) page

demo: $(INSTALLED)
	$(REACHED)
	@test ! -f artifacts/I/manifest.json || \
	  echo "Nothing is trained: Policy I is artifacts/I, which is there. To train it again, type: mv artifacts/I artifacts/I-before; make demo"
	@test -f artifacts/I/manifest.json || \
	  $(QUARL) train --task navigation --policy I --method ppo --steps $(DEMO_STEPS) --minutes 4
	@$(QUARL) bench latency --policy I,II,III --target $(TARGET) --runs $(DEMO_RUNS) >/dev/null
	@$(QUARL) bench success --policy I,II,III --target $(TARGET) --episodes $(DEMO_EPISODES) >/dev/null
	@$(QUARL) bench table case-study --local --target $(TARGET) --output-path results

train: $(INSTALLED)
	@test -n "$(POLICY)" || { echo "Which policy? Type: make train POLICY=I   (I, II or III)"; exit 2; }
	@$(QUARL) train --task navigation --policy $(POLICY)

convert: $(INSTALLED)
	@$(QUARL) convert --policy $(POLICIES) --bits $(BITS) $(KEPT)

deploy: $(INSTALLED)
	$(REACHED)
	@$(QUARL) convert --missing --policy $(POLICIES) --bits $(BITS) $(KEPT)
	@for policy in $(POLICIES); do \
	  $(if $(GROUP),$(QUARL) fleet deploy --group $(GROUP) --policy $$policy $(TYPED) $(ROLLOUT) $(if $(ACCEPT),--accept), \
	  $(QUARL) deploy --target $(TARGET) --policy $$policy --bits $(BITS) \
    $(if $(filter native,$(AGENT)),--agent native,--runtime $(RUNTIME)) $(if $(ACCEPT),--accept)); done

bench: $(INSTALLED)
	@for policy in $(POLICIES); do $(if $(GROUP),for kind in latency memory success; do \
	  $(QUARL) fleet run $$kind --group $(GROUP) --policy $$policy; done, \
	  $(QUARL) bench latency --policy $$policy --target $(TARGET); \
	  $(QUARL) bench memory --policy $$policy --target $(TARGET); \
	  $(QUARL) bench success --policy $$policy --target $(TARGET)); done

# WRITE=1: every table and picture of README.md and docs/ is made again from the committed results, byte for byte.
table: $(INSTALLED)
	@$(QUARL) bench table $(if $(WRITE),--update-docs >/dev/null)
ifdef WRITE
	@$(QUARL) study all --stored --update-docs >/dev/null
endif

docs: $(INSTALLED)
	$(call install,requirements-docs.txt)
	@NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --quiet --strict
	@echo "artifacts/site/index.html"

wheel: $(INSTALLED)
	@$(PYTHON) setup/wheel.py

pi: $(INSTALLED)
	@$(QUARL) pi start --machine $(MACHINE)

pi-stop: $(INSTALLED)
	@$(QUARL) pi stop

test: $(INSTALLED)
	@test -e "$(firstword $(subst ::, ,$(TESTS)))" || \
	  { echo "TESTS=$(TESTS): there is no such file. Type, for example: make test TESTS=tests/policy"; exit 2; }
	@bash setup/tests.sh
	@$(if $(filter test-all,$(MAKECMDGOALS)),,$(if $(QUICK),$(PYTHON) -m pytest --quick,$(PYTEST)) -m "not slow" $(TESTS))

# Everything, in one go: what make test runs and the slow ones, which share devices and machines with them; then the
# README's commands on a bare machine, unless BARE= is empty.
BARE ?= bash setup/bare_machine.sh --quick
test-all: test
	@$(PYTEST) --durations 20 $(TESTS)
	@$(BARE)

# A tree that cannot be written gets no caches.
lint: $(INSTALLED)
	@test -w . || export RUFF_NO_CACHE=true MYPY_CACHE_DIR=/dev/null; \
	  $(VENV)/bin/ruff check .; \
	  $(VENV)/bin/ruff format --check .; \
	  $(VENV)/bin/mypy -p quarl -p tests; \
	  $(VENV)/bin/codespell README.md CONTRIBUTING.md CHANGELOG.md docs tests/messages; \
	  $(PYTHON) setup/help_texts.py | $(VENV)/bin/codespell -

format: $(INSTALLED)
	@$(VENV)/bin/ruff check --fix .
	@$(VENV)/bin/ruff format .

.DEFAULT:
	@echo "There is no target '$@'. Type: make   (it prints those that there are)"; exit 2

clean:
	rm -rf .pytest_cache .mypy_cache .ruff_cache *.egg-info
	@echo "artifacts/ and results/ hold what you trained and measured, $(VENV)/ what was installed; remove them by hand."
