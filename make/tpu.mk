# An environment that lowers to TPU HLO without a TPU: the wheel registers the TPU kernels, libtpu stays out. Another version than this one,
# such as TPU_VERSION=2.19.1, gets a folder of its own, .venv-tpu-2.19.1; TPU_PYTHON=.venv-tpu-2.19.1/bin/python tells the tests so.
TPU_VERSION ?= 2.20.0
VENV_TPU := .venv-tpu$(patsubst %,-%,$(filter-out 2.20.0,$(TPU_VERSION)))
.PHONY: venv-tpu
venv-tpu: $(VENV_TPU)/.installed
$(VENV_TPU)/.installed: pyproject.toml
	@$(PYTHON) -m venv $(VENV_TPU)
	@$(VENV_TPU)/bin/python -m pip install --quiet --disable-pip-version-check uv 2>&1 | grep -v '^WARNING: Location' || true
	@echo "libtpu; sys_platform == 'none'" > $(VENV_TPU)/without_libtpu.txt
	@VIRTUAL_ENV=$(VENV_TPU) $(VENV_TPU)/bin/uv pip install --quiet --overrides $(VENV_TPU)/without_libtpu.txt --group tpu \
	  'tensorflow-tpu==$(TPU_VERSION)'
	@VIRTUAL_ENV=$(VENV_TPU) $(VENV_TPU)/bin/uv pip install --quiet --no-deps 'tensorflow-text~=$(basename $(TPU_VERSION)).0' --editable .
	@touch $@
# The TPU compiler, for tools/compile_for_tpu.py. It lowers in .venv-tpu, because TensorFlow and JAX bring one XLA each.
.PHONY: venv-tpu-compiler
venv-tpu-compiler: .venv-tpu-compiler/.installed
.venv-tpu-compiler/.installed: pyproject.toml
	@$(PYTHON) -m venv .venv-tpu-compiler
	@.venv-tpu-compiler/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	@.venv-tpu-compiler/bin/python -m pip install --quiet --disable-pip-version-check --group tpu-compiler
	@touch $@
