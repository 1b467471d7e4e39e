# A C program that answers with an exported model, built against the installed TensorFlow (docs/serving_models.md).
C_PROGRAM ?= build/predict
.PHONY: c-program
c-program: deploy/c/predict.c .venv/.installed
	@command -v gcc >/dev/null || { echo "error: there is no command gcc: apt-get install gcc libc6-dev" >&2; exit 1; }
	@mkdir -p $(dir $(C_PROGRAM))
	@tensorflow=$$(echo $(CURDIR)/.venv/lib/python3.*/site-packages/tensorflow) && gcc -O2 -Wall -Wextra -I$$tensorflow/include \
	  $< -o $(C_PROGRAM) -L$$tensorflow -l:libtensorflow_cc.so.2 -l:libtensorflow_framework.so.2 -Wl,-rpath,$$tensorflow
	@echo $(C_PROGRAM)
