# Every target sets up what it needs, from nothing but Python 3.11 to 3.13 and a package index.
#
#   CONFIG, ARGS   the run file of best-of-32; further arguments for autoj or pytest
#   ACCELERATOR    cpu or gpu; by default gpu where nvidia-smi lists one
#   PYTHON         the Python to build .venv with, 3.11 to 3.13; by default the oldest of these
#   VENV           the environment's folder in place of .venv, such as for a second Python

CONFIG = configs/jobs/best_of_32.yaml
ARGS =
VENV = .venv
ACCELERATOR = $(shell nvidia-smi -L >/dev/null 2>&1 && echo gpu || echo cpu)
PYTHON = $(firstword $(foreach minor,11 12 13,$(shell python3.$(minor) -c '' 2>/dev/null && echo python3.$(minor))) python3)

# What was compiled is kept, the tests' rewritten asserts too: each process would do it again.
unexport PYTHONDONTWRITEBYTECODE
BIN := $(VENV)/bin
TRL := 1.16.0
# What they import comes without what only a GPU needs.
FRAMEWORKS := openrlhf==0.11.2 verl==0.9.1 pylatexenc==2.11 omegaconf==2.3.0 \
  antlr4-python3-runtime==4.9.3 hydra-core==1.3.8 tensordict==0.15.3 pyvers==0.2.3 \
  codetiming==1.4.0 orjson==3.13.0 \
  verifiers==0.4.0 prime-pydantic-config==0.4.3 renderers==0.1.12 tenacity==9.2.1 tomli-w==1.2.0 \
  math-verify==0.9.0 latex2sympy2-extended==1.11.0 nemo-gym==0.7.0 itsdangerous==2.2.0 \
  areal==1.0.4 colorlog==6.12.0 skyrl-gym==0.4.0 llamafactory==0.9.5 rewardbench==0.1.4 \
  inspect_ai==0.3.285 agent-client-protocol==0.12.1 aiobotocore==3.10.0 aioitertools==0.13.0 \
  botocore==1.44.8 jsonlines==4.0.0 jsonpatch==1.48 jsonpointer==3.12 nest_asyncio2==1.7.4 \
  s3fs==2026.9.0 semver==3.1.2 shortuuid==1.0.13 textual==8.2.8 wrapt==2.5.2 \
  zipfile-zstd==0.0.4 zstandard==0.25.0 \
  tinker==0.38.0 tinker-cookbook==0.6.1 chz==0.4.0 distro==1.9.0 blobfile==3.3.0 lxml==6.1.3 \
  axolotl==0.21.0 addict==2.4.0 \
  ms-swift==4.6.0 modelscope==1.40.2 modelscope-hub==0.5.1 dacite==1.9.2 json-repair==0.64.6
# Beside the frameworks, since those that find a tracker report to it.
TRACKERS := mlflow-skinny==3.17.2 databricks-sdk==0.162.0 GitPython==3.2.1 gitdb==4.0.12 smmap==5.0.3 \
  importlib_metadata==9.1.0 zipp==4.1.2 sqlparse==0.6.1 \
  trackio==0.43.0 gradio_client==2.7.2 brotli==1.2.1 orjson==3.13.0 wandb==0.31.0
# Judges of others, each with an environment of its own, because their dependencies conflict.
PEERS := py-openjudge==0.2.4,openai==3.57.0 its-hub[lm]==1.2.0,openai==3.57.0 verifiers==0.4.0 \
  inspect_ai==0.3.285,openai==3.57.0
# The newest of that day, before 1.107.0, which was compromised. What comes with it is no newer: parts
# of it have the same authors.
LITELLM := litellm[proxy]==1.106.6
LITELLM_UNTIL := 2026-11-01
SERVE := transformers==5.24.0
LOCKED := $(VENV)/.$(ACCELERATOR)-locked
READY := $(VENV)/.ready
DOCS := $(VENV)/docs
# A process and a thread a core; each process takes a gigabyte.
SPREAD := OMP_NUM_THREADS=1 $(BIN)/pytest -n logical --maxprocesses 8 --dist worksteal
# Ray and engines start on one core, so two test files at a time on a CPU; a GPU has room for one.
IN_TURN := $(BIN)/pytest $(if $(filter cpu,$(ACCELERATOR)),-n logical --maxprocesses 2 --dist loadfile)
# Tests that start no engine wait for a quarter of the time: half as many processes again.
MORE = $(shell expr $$(getconf _NPROCESSORS_ONLN) \* 3 / 2)
IF_ANY := || [ $$? -eq 5 ] # pytest's code for no test, as ARGS may want of one part

.PHONY: help best-of-32 quick test chaos gpu-figures peers test-trl test-client test-frameworks test-servers upstream \
	check lint types docs setup model lock clean
.DEFAULT_GOAL := help

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "%-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@sed -n 's/^#   //p' $(MAKEFILE_LIST)

best-of-32: model  ## Sample 32 responses a query, judge them, keep the best
	@$(BIN)/autoj best-of-n --config $(CONFIG) $(ARGS)

quick: model  ## Run the tests that start no engine, train nothing and install nothing
	@$(SPREAD) -n $(MORE) -m 'not engine and not training and not index and not gpu' $(ARGS)

test: model  ## Run all tests but test-client's
	@$(SPREAD) -m 'not engine and not index and not gpu' $(ARGS) $(IF_ANY); first=$$?; \
	$(IN_TURN) -m 'engine or gpu' $(ARGS) $(IF_ANY) && exit $$first # the second half runs in any case

chaos: model  ## Load, attack and kill a reward service; the table goes to runs/chaos
	$(BIN)/python -m experiments.faults.chaos --config configs/experiments/chaos.yaml $(ARGS)

gpu-figures: model  ## Measure this machine's GPU, part by part; again to go on with what is left
	@$(BIN)/python -m experiments.speed.gpu_figures --config configs/experiments/gpu_figures.yaml $(ARGS)

peers: model  ## Compare this package with other judges: single responses, then groups
	@for peer in $(PEERS); do own=.venv/peers/$${peer%%[[=]*}/bin/python; \
	  test -x $$own || $(PYTHON) -m venv --without-pip $${own%/bin/python} || exit 1; \
	  $(BIN)/uv pip install --quiet --python $$own $$(echo $$peer | tr , ' ') || exit 1; \
	done
	$(BIN)/python -m experiments.speed.peers --config configs/experiments/peers.yaml $(ARGS)
	$(BIN)/python -m experiments.speed.group_peers --config configs/experiments/group_peers.yaml $(ARGS)

test-trl: model  ## Run the trainers' tests on a current TRL, beside the pinned one
	$(BIN)/pip install --quiet --no-deps --upgrade --target .venv/trl-$(TRL) trl==$(TRL)
	PYTHONPATH=.venv/trl-$(TRL) $(SPREAD) $(addprefix tests/trainer/test_trl,.py _parts.py _async.py) \
	  tests/training/test_judge_dpo.py tests/training/test_judge_grpo.py -k 'not ppo'

test-client: $(READY)  ## Install the client alone, resolve it beside trainers' own bounds, and resolve the pinned lists
	$(BIN)/pytest -m index tests/service/test_client_install.py tests/test_install.py \
	  tests/engine/test_builds.py $(ARGS)

test-frameworks: model  ## Run the adapters of other frameworks, and the trackers, in their own code
	$(BIN)/pip install --quiet --no-deps --no-compile --ignore-requires-python --upgrade \
	  --target .venv/frameworks $(FRAMEWORKS)
	$(BIN)/pip install --quiet --no-deps --no-compile --upgrade --target .venv/trackers $(TRACKERS)
	$(BIN)/pytest $(addprefix tests/trainer/test_,openrlhf.py verl.py verl_hosted.py verifiers.py \
	  nemo_gym.py areal.py skyrl.py llamafactory.py tinker.py axolotl.py ms_swift.py) \
	  tests/scorers tests/evaluate/test_sections.py tests/experiments/speed/test_overlap.py \
	  tests/test_trackers.py $(ARGS)

test-servers: model  ## Judge by LiteLLM's proxy in front of vLLM, transformers serve and llama.cpp's server
	test -x .venv/servers/litellm/bin/python || $(PYTHON) -m venv --without-pip .venv/servers/litellm
	$(BIN)/uv pip install --quiet --python .venv/servers/litellm/bin/python --only-binary :all: \
	  --exclude-newer $(LITELLM_UNTIL) '$(LITELLM)'
	$(BIN)/pip install --quiet --no-deps --upgrade --target .venv/servers/transformers $(SERVE)
	$(BIN)/pytest tests/engine/test_servers.py $(ARGS)

upstream: $(READY)  ## Look up what adapters call in the releases of the last year, without installing them
	@$(BIN)/python -m experiments.upstream

check: lint types test  ## Everything CI runs: lint, types, tests

lint: $(READY)  ## Check format and style
	$(BIN)/ruff format --check
	$(BIN)/ruff check

types: $(READY)  ## Check types
	$(BIN)/mypy

docs: $(READY) $(DOCS)/.ready  ## Build the documentation into site/; a broken link is an error
	@NO_MKDOCS_2_WARNING=1 PYTHONPATH=$(DOCS) $(BIN)/python -m mkdocs build $(ARGS)

setup: $(READY)  ## Build .venv from the pinned requirements

model: $(READY)  ## Prepare the default judge
	@$(BIN)/autoj models --prepare >/dev/null

lock: $(READY)  ## Resolve pyproject.toml into requirements/*.txt
	requirements/lock.sh

clean:  ## Remove .venv and caches; runs/ stays
	rm -rf .venv build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

$(DOCS)/.ready: requirements/docs.txt $(READY)
	@rm -rf $(DOCS)
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --target $(DOCS) -r $<
	@touch $@

# A stamp is the last thing written, so a set-up that was cut short starts over.
$(READY): pyproject.toml $(LOCKED)
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

$(LOCKED): $(filter-out requirements/docs.txt,$(wildcard requirements/*.txt)) requirements/install.py
	@$(PYTHON) -c 'import sys; (3, 11) <= sys.version_info[:2] <= (3, 13) or sys.exit("$(PYTHON) is Python " + sys.version.split()[0])' \
	  || { echo 'autoj-reward needs Python 3.11 to 3.13: install one, or name it with make PYTHON=<python3.12>' >&2; exit 1; }
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python requirements/install.py $(ACCELERATOR)
	@touch $@
