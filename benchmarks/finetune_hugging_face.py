"""Fine-tunes Hugging Face's PyTorch BERT on texts or given rows; runs in a separate environment (`make venv-torch`).

# texts, labels, settings; prints results
.venv-torch/bin/python benchmarks/finetune_hugging_face.py train FOLDER RUN.json
# prints the loss of each batch in turn
.venv-torch/bin/python benchmarks/finetune_hugging_face.py losses FOLDER BATCHES.npz
"""

import json
import sys
import time

import numpy as np
import torch
import transformers

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
# On CPUs as fast as its fused attention in float32, and 1.1 (rows of 70 tokens) to 1.3 times (350) as fast in bfloat16,
# with less memory.
ATTENTION = {"attn_implementation": "eager"}
NOT_DECAYED = ("bias", "LayerNorm.weight")


def make_optimizer(model, epsilon):
    """Returns AdamW with its usual groups: no decay of LayerNorm and biases."""
    named = list(model.named_parameters())
    groups = [
        {"params": [weight for name, weight in named if name.endswith(NOT_DECAYED) == last], "weight_decay": decay}
        for last, decay in ((False, 0.01), (True, 0.0))
    ]
    return torch.optim.AdamW(groups, lr=0.0, eps=epsilon)


def products_in(precision):
    """Returns the context in which a model computes its products in a precision; weights and their updates stay
    float32.
    """
    return torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16")


def update(model, optimizer, loss, rate):
    """Does a step at a rate, with the gradient clipped to norm 1."""
    for group in optimizer.param_groups:
        group["lr"] = float(rate)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def load(folder, run):
    """Returns the library's tokenizer, and its model for the kind of task."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    if run["kind"] == "spans":
        return tokenizer, transformers.AutoModelForQuestionAnswering.from_pretrained(folder, **ATTENTION)
    if run["kind"] == "tags":
        return tokenizer, transformers.AutoModelForTokenClassification.from_pretrained(
            folder, num_labels=run["num_labels"], **ATTENTION
        )
    kind = (
        {"problem_type": "regression", "num_labels": 1} if run["num_labels"] == 1 else {"num_labels": run["num_labels"]}
    )
    return tokenizer, transformers.AutoModelForSequenceClassification.from_pretrained(folder, **kind, **ATTENTION)


def with_adapters(model, run):
    """Returns the model with the adapters of a run's settings, beside which only its head learns, as PEFT makes it."""
    if not run["adapters"]:
        return model
    import peft

    task = {"texts": "SEQ_CLS", "tags": "TOKEN_CLS", "spans": "QUESTION_ANS"}[run["kind"]]
    return peft.get_peft_model(model, peft.LoraConfig(task_type=task, **run["adapters"]))


def make_rows(tokenizer, part, longest):
    """Returns unpadded inputs: the given rows, or texts tokenized by the library's own tokenizer."""
    if "texts" not in part:
        return {name: part[name] for name in INPUTS}
    return tokenizer(*[texts for texts in part["texts"] if texts], truncation=True, max_length=longest)


def collate(tokenizer, rows, numbers):
    """Returns a batch padded to its longest row."""
    return tokenizer.pad({name: [values[i] for i in numbers] for name, values in rows.items()}, return_tensors="pt")


def targets(part, numbers, length):
    """Returns the targets of the loss: labels, tags (-100 for none) or the positions of answers."""
    columns = {
        name: [part[name][i] for i in numbers]
        for name in ("labels", "start_positions", "end_positions")
        if name in part
    }
    return {
        name: torch.tensor([row + [-100] * (length - len(row)) for row in rows] if isinstance(rows[0], list) else rows)
        for name, rows in columns.items()
    }


def train(folder, run_file):
    """Fine-tunes with dynamic padding (to the longest row of each batch), then predicts."""
    with open(run_file, encoding="utf-8") as file:
        run = json.load(file)
    transformers.set_seed(run["seed"])
    torch.set_num_threads(run["threads"])
    tokenizer, model = load(folder, run)
    model = with_adapters(model, run)
    rows = {part: make_rows(tokenizer, run[part], run["max_seq_length"]) for part in ("train", "eval")}
    size = run["batch_size"]
    optimizer = make_optimizer(model, run["epsilon"])
    model.train()
    began = time.monotonic()
    for rate, numbers in zip(run["rates"], orders(len(rows["train"]["input_ids"]), size, run["seed"])):
        batch = collate(tokenizer, rows["train"], numbers)
        with products_in(run["precision"]):
            loss = model(**batch, **targets(run["train"], numbers, batch["input_ids"].shape[1])).loss
        update(model, optimizer, loss, rate)
    seconds = time.monotonic() - began
    print(
        json.dumps(
            {"seconds": seconds, "steps": len(run["rates"]), "logits": answer(model, tokenizer, rows["eval"], run)}
        )
    )


def orders(count, size, seed):
    """Yields the rows of each step, epoch after epoch in another order."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield from torch.randperm(count, generator=generator).split(size)


def answer(model, tokenizer, rows, run):
    """Returns the logits of all rows in order: per row, per token, or of start and end per token."""
    model.eval()
    logits_of_rows, size = [], run["batch_size"]
    with torch.no_grad(), products_in(run["precision"]):
        for start in range(0, len(rows["input_ids"]), size):
            numbers = range(start, min(start + size, len(rows["input_ids"])))
            outputs = model(**collate(tokenizer, rows, numbers))
            logits = (
                outputs.logits if "logits" in outputs else torch.stack([outputs.start_logits, outputs.end_logits], -1)
            )
            logits_of_rows += logits.float().tolist()
    return logits_of_rows


def losses(folder, batches_file):
    """Trains on given batches without dropout, at given rates; weights and head come from the folder."""
    batches = np.load(batches_file)
    of_scores = "scores_0" in batches
    model = transformers.BertForSequenceClassification.from_pretrained(
        folder,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        classifier_dropout=0.0,
        problem_type="regression" if of_scores else "single_label_classification",
        **ATTENTION,
    )
    optimizer = make_optimizer(model, float(batches["epsilon"]))
    model.train()
    values = []
    for step, rate in enumerate(batches["rates"]):
        batch = {
            name: torch.tensor(batches[f"{ours}_{step}"]).long()
            for name, ours in zip(INPUTS, ("input_ids", "input_mask", "segment_ids"))
        }
        labels = (
            torch.tensor(batches[f"scores_{step}"]).float()
            if of_scores
            else torch.tensor(batches[f"label_ids_{step}"]).long()
        )
        loss = model(**batch, labels=labels).loss
        values.append(loss.item())
        update(model, optimizer, loss, rate)
    print(json.dumps(values))


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    {"train": train, "losses": losses}[sys.argv[1]](*sys.argv[2:])
