# Fails if the pre-training step is slower than keras-hub's in the same run; needs a machine without other work.
.PHONY: bench-guard
bench-guard: .venv/.installed
	@$(BIN)/python benchmarks/pretraining_step.py --sizes=tiny:64x128,small:16x128 --precisions=float32 \
	  --contenders=ours,keras_hub --least_ratio=1
