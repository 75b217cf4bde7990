# The front door: bare `make` prints the pipeline in order.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:

POLICY ?=
BITS ?= 8
MACHINE ?= virt
TARGET ?= local
RUNTIME ?= litert
PYTHON311 ?= python3.11
DEMO_STEPS ?= 2000000

VENV := .venv
PYTHON := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
PEERS := .venv-peers
UV_VERSION := 0.13.8

# POLICY=I names one policy; without it a command takes I, II and III (not zoo/benchmark).
POLICIES := $(if $(POLICY),$(POLICY),$(notdir $(patsubst %/policy.json,%,$(wildcard zoo/*/policy.json))))

.PHONY: help setup suites actorq peers training-speed study study-quick report demo train convert deploy bench table pi pi-stop test test-fast lint format clean

help:
	@echo "From a policy to its report from a device, one line a step:"
	@echo
	@echo "  make demo                              all of it: set up, train Policy I, convert, deploy, measure, table"
	@echo
	@echo "  make setup                             $(VENV) from pinned packages, and the device's wheels"
	@echo "  make suites                            Box2D, Atari, PyBullet, MuJoCo, dm_control as further tasks"
	@echo "  make actorq                            Ray, for training with quantized actors: python -m train.actorq"
	@echo "  make train POLICY=I                    train a navigation policy         -> artifacts/I"
	@echo "  make convert BITS=8 [POLICY=III]       TFLite and ONNX, checked          -> artifacts/III/int8.tflite …"
	@echo "  make deploy TARGET=pi@raspberrypi [POLICY=III] [BITS=8] [RUNTIME=litert] over SSH"
	@echo "  python bench/latency.py --policy III [--target pi@raspberrypi]"
	@echo "  python bench/memory.py  --policy III       python bench/success.py --policy III"
	@echo "  make bench [TARGET=…]                  the three of them, I, II and III  -> results/"
	@echo "  make table                             the tables of the README from the stored results"
	@echo "  make training-speed                    against Stable-Baselines3, which make peers installs"
	@echo "  make study | make study-quick          what fewer bits cost every committed policy (make suites first)"
	@echo "  make report                            all of it as one page to read         -> results/report.html"
	@echo
	@echo "  make pi [MACHINE=raspi3b]              an emulated Raspberry Pi 3b: TARGET=pi@virtual;  make pi-stop"
	@echo
	@echo "  make test | make lint | make clean"
	@echo
	@echo "TARGET=local (default) is an SSH server on this machine that the command starts itself."

# $(call install_more,NAME): requirements-NAME.txt on top of the pinned packages.
define install_more
@VIRTUAL_ENV=$(CURDIR)/$(VENV) $(VENV)/bin/uv pip install -r requirements.txt -r requirements-$(1).txt || { \
  echo "uv could not install it (a proxy or a certificate of your own?); pip tries, more slowly …"; \
  $(PYTHON) -m pip install --disable-pip-version-check -r requirements.txt -r requirements-$(1).txt; }
endef

setup: $(INSTALLED)

$(INSTALLED): requirements.txt pyproject.toml
	@command -v $(PYTHON311) >/dev/null || { \
	  echo "Python 3.11 is needed and '$(PYTHON311)' was not found. Type: sudo apt-get install python3.11 python3.11-venv"; \
	  echo "or name yours: make setup PYTHON311=/path/to/python3.11"; exit 1; }
	@$(PYTHON311) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { \
	  echo "$(PYTHON311) is $$($(PYTHON311) --version); Python 3.11 is needed. Type: make setup PYTHON311=python3.11"; exit 1; }
	@$(PYTHON311) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "Python's venv module is missing. Type: sudo apt-get install python3.11-venv"; exit 1; }
	@echo "Setting up $(VENV) (about a minute) …"
	@$(PYTHON311) -m venv $(VENV)
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	@VIRTUAL_ENV=$(CURDIR)/$(VENV) $(VENV)/bin/uv pip install -r requirements.txt || { \
	  echo "uv could not install it (a proxy or a certificate of your own?); pip tries, more slowly …"; \
	  $(PYTHON) -m pip install --disable-pip-version-check -r requirements.txt; }
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@$(PYTHON) -m device.host prefetch --target local
	@touch $@

suites: $(INSTALLED)
	$(call install_more,suites)
	@$(PYTHON) -m train.list

actorq: $(INSTALLED)
	$(call install_more,actorq)

peers: $(PEERS)/.installed

$(PEERS)/.installed: requirements-peers.txt
	@command -v $(PYTHON311) >/dev/null || { \
	  echo "Python 3.11 is needed and '$(PYTHON311)' was not found. Type: make peers PYTHON311=/path/to/python3.11"; exit 1; }
	@echo "Setting up $(PEERS): Stable-Baselines3 and PyTorch, about 1 GB …"
	@$(PYTHON311) -m venv $(PEERS)
	@$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-peers.txt
	@touch $@

training-speed: $(INSTALLED) peers
	@$(PYTHON) bench/training_speed.py --keep
	@$(PYTHON) bench/table.py training-speed --update-readme

study: $(INSTALLED)
	@$(PYTHON) -m bench.study

study-quick: $(INSTALLED)
	@$(PYTHON) -m bench.study --quick

report: $(INSTALLED)
	@$(PYTHON) -m bench.html_report

demo: $(INSTALLED)
	@test -f artifacts/I/manifest.json || \
	  $(PYTHON) -m train --task navigation --policy I --method ppo --steps $(DEMO_STEPS) --minutes 4
	@$(PYTHON) bench/demo.py --target $(TARGET)

train: $(INSTALLED)
	@test -n "$(POLICY)" || { echo "Which policy? Type: make train POLICY=I   (I, II or III)"; exit 2; }
	@$(PYTHON) -m train --task navigation --policy $(POLICY)

convert: $(INSTALLED)
	@for policy in $(POLICIES); do $(PYTHON) -m convert --policy $$policy --bits $(BITS); done

deploy: $(INSTALLED)
	@for policy in $(POLICIES); do \
	  $(PYTHON) -m convert --missing --policy $$policy --bits $(BITS); \
	  $(PYTHON) -m device.host deploy --target $(TARGET) --policy $$policy --bits $(BITS) --runtime $(RUNTIME); done

bench: $(INSTALLED)
	@for policy in $(POLICIES); do \
	  $(PYTHON) bench/latency.py --policy $$policy --target $(TARGET); \
	  $(PYTHON) bench/memory.py --policy $$policy --target $(TARGET); \
	  $(PYTHON) bench/success.py --policy $$policy --target $(TARGET); done

table: $(INSTALLED)
	@$(PYTHON) bench/table.py --update-readme

pi: $(INSTALLED)
	@$(PYTHON) -m device.virtual_pi start --machine $(MACHINE)

pi-stop: $(INSTALLED)
	@$(PYTHON) -m device.virtual_pi stop

test: $(INSTALLED)
	@test -x /usr/sbin/sshd || { \
	  echo "The tests deploy to a real OpenSSH server. Type: sudo apt-get install --no-install-recommends openssh-server"; \
	  echo "or run those that need none: make test-fast"; exit 1; }
	@$(PYTHON) -m pytest

test-fast: $(INSTALLED)
	@$(PYTHON) -m pytest -m "not integration"

lint: $(INSTALLED)
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy policy airlearning_envs train convert device bench

format: $(INSTALLED)
	@$(VENV)/bin/ruff check --fix .
	@$(VENV)/bin/ruff format .

clean:
	rm -rf .pytest_cache .mypy_cache .ruff_cache *.egg-info
	@echo "artifacts/ and results/ hold what you trained and measured, $(VENV)/ what was installed; remove them by hand."
