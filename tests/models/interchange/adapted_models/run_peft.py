"""Computes the logits, or last hidden states, of an adapter on its base with PEFT, in an environment of its own.

.venv-torch/bin/python tests/models/interchange/adapted_models/run_peft.py BASE CLASS ADAPTER OUTPUT.npy
"""

import sys

import numpy as np
import peft
import torch
import transformers

base, architecture, adapter, output = sys.argv[1:]
options = {"num_labels": 3} if "Classification" in architecture else {}
model = getattr(transformers, architecture).from_pretrained(base, **options)
model = peft.PeftModel.from_pretrained(model, adapter).eval()
ids = torch.arange(2, 14).reshape(2, 6)
with torch.no_grad():
    outputs = model(input_ids=ids, attention_mask=torch.ones_like(ids))
if "start_logits" in outputs:
    found = torch.stack([outputs.start_logits, outputs.end_logits])
else:
    found = outputs.logits if "logits" in outputs else outputs.last_hidden_state
np.save(output, found.numpy())
