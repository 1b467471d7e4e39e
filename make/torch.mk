# PyTorch, Hugging Face transformers and ONNX Runtime: peers only, never in the product's environment.
.PHONY: venv-torch
venv-torch: .venv-torch/.installed
.venv-torch/.installed: pyproject.toml
	@$(PYTHON) -m venv .venv-torch
	@.venv-torch/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	@.venv-torch/bin/python -m pip install --quiet --disable-pip-version-check --upgrade --group torch
	@touch $@
