"""The golden results that are part of the wheel, for `official-bert verify`: copies and excerpts of tests/golden.

    python tests/made_verification.py

writes them into tools/verification/golden. A test compares each number with tests/golden.
"""

import gzip
import pathlib
import re
import shutil

import numpy as np

ROOT = pathlib.Path(__file__).parent.parent
GOLDEN, EXCERPTS = ROOT / "tests" / "golden", ROOT / "tools" / "verification" / "golden"
WHOLE = (
    "text_a.txt",
    "vocab_uncased.txt",
    "vocab_cased.txt",
    "generator_base.json",
    "generator_base.npz",
    "squad_v1.json",
    "squad_v1_logits.npz",
    *(f"tf1_bert/{name}" for name in ("bert_config.json", "bert_model.ckpt.index", "inputs.npz")),
)
PACKED = ("tokenizer.json", "squad_v1_features.json", "tf1_bert/bert_model.ckpt.data-00000-of-00001")
LEFT_OUT = re.compile(r"layer_[12]/.*kernel|position_embeddings|encoder_layer_0")  # for their size
TABLES = ("bert/embeddings/word_embeddings", "cls/predictions/output_bias", "masked_lm_log_probs")
EVERY = 50  # of which this share of the vocabulary is kept


def excerpt(name: str) -> dict[str, np.ndarray]:
    """Returns what is kept of an .npz of tf1_bert: all arrays but LEFT_OUT, every 50th word of the vocabulary."""
    arrays = dict(np.load(GOLDEN / "tf1_bert" / name))
    kept = {key: value for key, value in arrays.items() if not LEFT_OUT.search(key)}
    for key in set(TABLES).intersection(kept):
        kept[key] = kept[key][:, ::EVERY] if key == "masked_lm_log_probs" else kept[key][::EVERY]
    return kept


def main() -> None:
    """Writes all files."""
    (EXCERPTS / "tf1_bert").mkdir(parents=True, exist_ok=True)
    for name in WHOLE:
        shutil.copyfile(GOLDEN / name, EXCERPTS / name)
    for name in PACKED:
        (EXCERPTS / f"{name}.gz").write_bytes(gzip.compress((GOLDEN / name).read_bytes(), mtime=0))
    for name in ("outputs.npz", "gradients.npz", "after_6_steps.npz"):
        np.savez_compressed(EXCERPTS / "tf1_bert" / name, **excerpt(name))


if __name__ == "__main__":
    main()
