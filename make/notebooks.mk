# Runs the notebooks of docs/ and keeps their outputs.
.PHONY: notebooks
notebooks: .venv/.installed
	@$(BIN)/python tools/run_notebooks.py
