"""Writes the folder of an adapter with random weights for a classifier of three classes, with PEFT, in an environment
of its own.

    .venv-torch/bin/python tests/journeys/write_peft.py BASE FOLDER
"""

import sys

import peft
import torch
import transformers

base, folder = sys.argv[1:]
torch.manual_seed(3)
model = transformers.AutoModelForSequenceClassification.from_pretrained(base, num_labels=3)
config = peft.LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["query", "value"], init_lora_weights=False)
peft.get_peft_model(model, config).save_pretrained(folder)
