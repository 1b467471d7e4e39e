"""Writes with transformers' `generate` for benchmarks/writing_words.py; runs in a separate environment (`make
venv-torch`).

.venv-torch/bin/python benchmarks/generate_hugging_face.py FOLDER INPUTS.npz

Each line of standard input is a JSON object: rows, and arguments of `generate`; each line of standard output has the
seconds, the processor seconds, and the words.
"""

import json
import sys
import time

import numpy as np
import torch
import transformers


def main(folder, inputs):
    model = transformers.EncoderDecoderModel.from_pretrained(folder).eval()
    arrays = np.load(inputs)
    names = {"input_ids": "input_ids", "input_mask": "attention_mask", "segment_ids": "token_type_ids"}
    rows = {theirs: torch.tensor(arrays[ours]).long() for ours, theirs in names.items()}
    print("ready", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        count = asked.pop("rows")
        batch = {name: values[:count] for name, values in rows.items()}
        began = time.perf_counter(), time.process_time()
        with torch.no_grad():
            sequences = model.generate(**batch, **asked)
        took = time.perf_counter() - began[0], time.process_time() - began[1]
        print(json.dumps([*took, sequences.tolist()]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
