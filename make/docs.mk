# The site in build/site: pages, notebooks and the reference from docstrings. A warning, a broken link among them, is an error.
.PHONY: docs
docs: .venv/.installed-docs
	@TF_CPP_MIN_LOG_LEVEL=3 $(BIN)/python -m sphinx -b html -q --fail-on-warning --keep-going docs build/site
	@echo "build/site/index.html"
.venv/.installed-docs: pyproject.toml .venv/.installed
	@VIRTUAL_ENV=.venv $(BIN)/uv pip install --quiet --group docs && touch $@
# The pages of all options, from the fields of the classes, and of what is promised.
.PHONY: options
options: .venv/.installed
	@TF_CPP_MIN_LOG_LEVEL=3 $(BIN)/python docs/write_options.py
	@TF_CPP_MIN_LOG_LEVEL=3 $(BIN)/python docs/write_promises.py
