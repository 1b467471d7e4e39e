# An environment that lowers to TPU HLO without a TPU: the wheel registers the TPU kernels, libtpu stays out.
.PHONY: venv-tpu
venv-tpu: .venv-tpu/.installed
.venv-tpu/.installed: requirements-tpu.txt
	@$(PYTHON) -m venv .venv-tpu
	@.venv-tpu/bin/python -m pip install --quiet --disable-pip-version-check uv 2>&1 | grep -v '^WARNING: Location' || true
	@VIRTUAL_ENV=.venv-tpu .venv-tpu/bin/uv pip install --quiet -r requirements-tpu.txt
	@VIRTUAL_ENV=.venv-tpu .venv-tpu/bin/uv pip install --quiet --no-deps 'tensorflow-tpu==2.20.0' 'tensorflow-text~=2.20.0' --editable .
	@touch $@
