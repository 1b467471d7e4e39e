# PyTorch, Hugging Face transformers and ONNX Runtime: peers only, never in the product's environment.
.PHONY: venv-torch
venv-torch: .venv-torch/.installed
.venv-torch/.installed: requirements-torch.txt
	@$(PYTHON) -m venv .venv-torch
	@.venv-torch/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-torch.txt
	@touch $@
