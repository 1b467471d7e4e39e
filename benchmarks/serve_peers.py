"""Runs a Hugging Face text classifier in PyTorch or ONNX Runtime, with requests on standard input, in a separate
environment.

    .venv-torch/bin/python benchmarks/serve_peers.py pytorch FOLDER 2     # a Hugging Face folder, threads

`benchmarks/serving.py` starts it. Each input line is JSON, a list of batches of texts, or of rows of ids by our names;
the answer is a JSON line with the seconds of each batch and all probabilities. The time for texts includes the
library's own fast tokenizer.
"""

import functools
import json
import os
import sys
import tempfile
import time

import numpy as np
import torch
import transformers

NAMES = {"input_ids": "input_ids", "input_mask": "attention_mask", "segment_ids": "token_type_ids"}


def make_pytorch(folder, threads, dtype=torch.float32):
    """Returns the model as its users run it: evaluation mode, no gradients, its fastest attention."""
    torch.set_num_threads(threads)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).to(dtype).eval()

    def logits(rows):
        with torch.inference_mode():
            return model(**{name: torch.from_numpy(value) for name, value in rows.items()}).logits.float().numpy()

    return logits


def make_onnx(folder, threads):
    """Returns the same model, exported and rewritten by ONNX Runtime's optimizer for BERT (fused attention, GELU, layer
    norm).
    """
    import onnxruntime
    from onnxruntime.transformers import optimizer

    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, attn_implementation="eager").eval()
    names = ["input_ids", "attention_mask", "token_type_ids"]
    example = tuple(torch.ones((2, 16), dtype=torch.int64) for _ in names)
    path = os.path.join(tempfile.mkdtemp(), "model.onnx")
    axes = {name: {0: "batch", 1: "length"} for name in names} | {"logits": {0: "batch"}}
    torch.onnx.export(
        model,
        example,
        path,
        input_names=names,
        output_names=["logits"],
        dynamic_axes=axes,
        dynamo=False,
        opset_version=17,
    )
    optimized = optimizer.optimize_model(
        path,
        model_type="bert",
        num_heads=model.config.num_attention_heads,
        hidden_size=model.config.hidden_size,
        opt_level=1,
    )
    optimized.save_model_to_file(path)
    print(f"fused: {optimized.get_fused_operator_statistics()}", file=sys.stderr)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    wanted = {one.name: np.int64 if "int64" in one.type else np.int32 for one in session.get_inputs()}
    return lambda rows: session.run(None, {name: rows[name].astype(kind) for name, kind in wanted.items()})[0]


def main(kind, folder, threads):
    """Answers requests until standard input ends."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    make = {
        "pytorch": make_pytorch,
        "onnx": make_onnx,
        "pytorch-bfloat16": functools.partial(make_pytorch, dtype=torch.bfloat16),
    }[kind]
    logits = make(folder, int(threads))
    print("ready", flush=True)
    for line in sys.stdin:
        seconds, probabilities = [], []
        for batch in json.loads(line):
            ids = {NAMES[name]: np.array(rows) for name, rows in batch.items()} if isinstance(batch, dict) else None
            began = time.perf_counter()
            rows = ids or tokenizer(
                batch, padding=True, truncation=True, max_length=tokenizer.model_max_length, return_tensors="np"
            )
            values = logits(dict(rows))
            values = np.exp(values - values.max(-1, keepdims=True))
            probabilities += (values / values.sum(-1, keepdims=True)).tolist()
            seconds.append(time.perf_counter() - began)
        print(json.dumps({"seconds": seconds, "probabilities": probabilities}), flush=True)


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    os.environ["OMP_NUM_THREADS"] = sys.argv[3]
    main(*sys.argv[1:])
