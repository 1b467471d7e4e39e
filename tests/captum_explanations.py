"""Writes captum's integrated gradients of small models for tests/serving/test_explanations.py, which reads
tests/fixtures/explanations.json; runs in an environment of its own (`make venv-torch`).

.venv-torch/bin/python tests/captum_explanations.py tests/fixtures/explanations.json
"""

import json
import pathlib
import sys
import tempfile

import captum
import torch
import transformers
from captum.attr import LayerIntegratedGradients
from made_explanations import KINDS, write_model

STEPS = 50


def explain(kind, model, tokenizer, row):
    """Returns captum's shares of all tokens of a row, with the logits at both ends."""
    texts = (row["question"], row["context"]) if kind == "span" else (row["text"],)
    encoded = tokenizer(*texts, return_tensors="pt", return_offsets_mapping=True)
    offsets, ids = encoded.pop("offset_mapping")[0].tolist(), encoded["input_ids"]
    special = torch.isin(ids, torch.tensor([tokenizer.cls_token_id, tokenizer.sep_token_id]))
    baseline = torch.where(special, ids, tokenizer.mask_token_id)
    with torch.no_grad():
        outputs = model(**encoded)
    if kind == "span":
        inside = (encoded["token_type_ids"][0] == 1) & ~special[0]
        sums = outputs.start_logits[0][:, None] + outputs.end_logits[0][None]
        allowed = torch.triu(inside[:, None] & inside[None])
        start, end = divmod(int(torch.where(allowed, sums, -torch.inf).argmax()), ids.shape[1])
        target = row["context"][offsets[start][0] : offsets[end][1]]
    elif kind == "tagger":
        place = next(n for n, (first, _) in enumerate(offsets) if n and first == row["text"].index(row["word"]))
        label = int(outputs.logits[0, place].argmax())
        target = f"{tokenizer.decode(ids[0, place])}: {model.config.id2label[label]}"
    else:
        label = int(outputs.logits[0].argmax())
        target = model.config.id2label[label]

    def logit(ids):
        found = model(
            ids, **{name: value.expand(len(ids), -1) for name, value in encoded.items() if name != "input_ids"}
        )
        if kind == "span":
            return found.start_logits[:, start] + found.end_logits[:, end]
        return found.logits[:, place, label] if kind == "tagger" else found.logits[:, label]

    method = LayerIntegratedGradients(logit, model.bert.embeddings.word_embeddings)
    shares = method.attribute(ids, baseline, n_steps=STEPS, method="gausslegendre").sum(-1)[0]
    with torch.no_grad():
        value, without = float(logit(ids)[0]), float(logit(baseline)[0])
    return {
        **row,
        "target": target,
        "value": value,
        "baseline": without,
        "tokens": tokenizer.convert_ids_to_tokens(ids[0]),
        "shares": [round(share, 7) for share in shares.tolist()],
    }


def main(path):
    """Writes the file."""
    found = {"captum": captum.__version__, "torch": torch.__version__, "steps": STEPS}
    for kind, (architecture, _, rows) in KINDS.items():
        with tempfile.TemporaryDirectory() as folder:
            write_model(pathlib.Path(folder), kind)
            model = getattr(transformers, architecture).from_pretrained(folder, attn_implementation="eager").eval()
            tokenizer = transformers.BertTokenizerFast(f"{folder}/vocab.txt", do_lower_case=False)
            found[kind] = [explain(kind, model, tokenizer, row) for row in rows]
    pathlib.Path(path).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
