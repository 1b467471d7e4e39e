# `make demo` and `make test` are all that a fresh machine needs; each makes .venv when it is missing.
PYTHON ?= python3.11
BIN := .venv/bin
CORPUS ?=

.PHONY: help install demo test test-slow known-shard lint lint-forms clean
help:
	@echo "make install    .venv with everything that the other commands need; PYTHON=python3.13 takes another Python (3.11 to 3.13)"
	@echo "make demo       text -> records -> pre-training -> exported model, on a corpus that needs no download"
	@echo "                make demo CORPUS='path/*.txt' takes yours"
	@echo "make test       the tests, 6 to 8 minutes on 2 cores"
	@echo "make test-slow  what takes longer or needs more tools; SHARD=3/20: the third of 20 shards"
	@echo "make c-program  build/predict, which answers with exported models without Python"
	@echo "make notebooks  the notebooks of docs/ run again, their outputs kept"
	@echo "make docs       the site, in build/site"
	@echo "make lint       ruff (rules and format), mypy, and the schemas of .github/"
	@echo "make lint-fast  what of it needs no TensorFlow, in an environment of its own (.venv-lint)"

# What every command imports. Compiled at installation, by all cores: otherwise the first command does it, and where Python may not
# write bytecode (PYTHONDONTWRITEBYTECODE) each command again. All that is installed would take four times as long.
COMPILED := tensorflow keras numpy scipy sklearn numba llvmlite h5py google matplotlib tensorboard
# Tokenizer and generator are compiled by Numba at their first use, for ten seconds; the result stays beside the sources.
COMPILE_KERNELS = folder=$$(mktemp -d) && $(BIN)/python tools/create_pretraining_data.py --input_file=README.md \
  --vocab_file=tests/golden/vocab_uncased.txt --output_file=$$folder/readme.tfrecord; rm -r $$folder
# The tests, with pytest's rewriting of their assertions, and what they alone import: else each of their processes compiles it.
WRITING_BYTECODE = env -u PYTHONDONTWRITEBYTECODE
COMPILE_TESTS = $(WRITING_BYTECODE) $(BIN)/python -m pytest --collect-only --quiet
# Optional dependencies of pyproject.toml that the tests use: all of them.
EXTRAS := serving,onnx,litert,openvino,int8,beam,faiss,excel,japanese,chinese
# uv (from PyPI) resolves and installs in seconds what takes pip minutes.
.venv/.installed: requirements.txt pyproject.toml
	@echo "Installing into .venv (a few minutes, about 3 GB) ..."
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12), (3, 13)))' 2>/dev/null \
	  || { echo "error: expected Python 3.11, 3.12 or 3.13; give it as make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv 2>&1 | grep -v '^WARNING: Location' || true
	@VIRTUAL_ENV=.venv $(BIN)/uv pip install --quiet -r requirements.txt --group dev --editable '.[$(EXTRAS)]'
	@cd .venv/lib/python3.*/site-packages && ../../../bin/python -m compileall -qq -j 0 -x '/tests?/' $(COMPILED) || true
	@{ { $(COMPILE_KERNELS); } & $(COMPILE_TESTS) & wait; } >/dev/null 2>&1 || true  # each takes one core
	@touch $@

install: .venv/.installed

demo: .venv/.installed
	@$(BIN)/python tools/demo.py --corpus='$(CORPUS)'

test: .venv/.installed
	@$(WRITING_BYTECODE) $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder -m "not slow" $(ARGS)

# SHARD=3/20: the third of twenty shards that take about equally long, by the seconds in tests/slow_durations.json;
# ARGS=--store-durations writes those of the tests that run. The last shards may have no test, which is status 5.
test-slow: known-shard .venv/.installed
	@$(WRITING_BYTECODE) $(BIN)/python -m pytest -m slow --durations-path=tests/slow_durations.json \
	  $(if $(SHARD),--splits=$(word 2,$(SHARD_NUMBERS)) --group=$(word 1,$(SHARD_NUMBERS))) $(ARGS) \
	  || test $$? -eq 5 -a -n "$$SHARD"
SHARD_NUMBERS = $(subst /, ,$(SHARD))
known-shard:
	@case $$SHARD in \
	  "") ;; \
	  *[!0-9/]* | */*/* | /* | */) false ;; \
	  */*) test "$${SHARD%/*}" -ge 1 -a "$${SHARD%/*}" -le "$${SHARD#*/}" 2>/dev/null ;; \
	  *) false ;; esac \
	  || { echo "error: SHARD: expected K/N with K from 1 to N, such as 3/20, got $$SHARD" >&2; exit 1; }

lint: .venv/.installed lint-forms
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/python tests/reach.py
	$(BIN)/mypy

FORMS := .github/ISSUE_TEMPLATE
lint-forms: .venv/.installed  # what GitHub reads
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-config $(FORMS)/config.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-forms \
	  $(filter-out %/config.yml,$(wildcard $(FORMS)/*.yml))
	$(BIN)/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml

clean:
	rm -rf demo build *.egg-info

-include $(wildcard make/*.mk)
