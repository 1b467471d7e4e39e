# What `make lint` checks without TensorFlow: all but mypy and the schemas. An environment of its own, installed in seconds.
.PHONY: lint-fast
lint-fast: .venv-lint/.installed
	.venv-lint/bin/ruff check .
	.venv-lint/bin/ruff format --check .
	.venv-lint/bin/lint-imports --no-cache
	.venv-lint/bin/python tests/reach.py
.venv-lint/.installed: make/lint.mk
	@$(PYTHON) -m venv .venv-lint
	@.venv-lint/bin/python -m pip install --quiet --disable-pip-version-check 'ruff>=0.6' 'import-linter>=2.3'
	@touch $@
