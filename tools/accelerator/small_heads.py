"""Small models of every head and kind of layer, and rows for them, which `tools/check_accelerator.py` compares."""

import os
import pathlib
from typing import Any, NamedTuple

import numpy as np

from official_bert.config import Config, build, merge
from official_bert.data.record_files import records
from official_bert.text.loading import VOCAB_FILE

STEPS = 20
# With SIZES, the tensors between products are large enough for the compiled pieces of a step (`layers/speed/fused`).
S, P, B, V = 128, 4, 32, 120
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(V - 5)))
SIZES = {
    "vocab_size": V,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "max_position_embeddings": S,
    "initializer_range": 0.1,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
ONE_LAYER = {"num_hidden_layers": 1}  # of trainings: their parts between the layers are what the heads do not show


class Head(NamedTuple):
    """A case for comparing outputs, losses and gradients: a task with options, on a small model.

    The model has the sizes SIZES and `sizes`.
    """

    name: str
    task: str
    options: dict[str, Any] = {}
    sizes: dict[str, Any] = {}
    in_16_bits: bool = True  # False: numbers are drawn by what the model says, and 16 bits would draw others


MODERN = {
    "norm": "pre",
    "feed_forward": "gated",
    "biases": False,
    "rotary": 10000.0,
    "window": 16,
    "global_every": 2,
    "type_vocab_size": 0,
}
# Every head, and the kinds of layers that relatives of BERT have.
HEADS = (
    Head("masked words and sentences", "pretraining"),
    Head("masked words, packed rows", "pretraining", {"pack": True, "max_instances_per_row": 3}),
    Head(
        "words of spans, from their boundaries too",
        "pretraining",
        {"masking": {"strategy": "span"}, "boundary_weight": 1.0},
    ),
    Head("next word", "pretraining", {"objective": "next_token"}, {"attention": "left_to_right"}),
    Head("replaced tokens", "pretraining", {"objective": "replaced_tokens", "sentence_task": "none"}, in_16_bits=False),
    Head("classifier", "classification", {"labels": ["a", "b", "c"]}),
    Head("several labels", "classification", {"kind": "multi_label", "labels": ["a", "b", "c"]}),
    Head("regression", "glue", {"dataset": "stsb"}),
    Head("choice", "swag"),
    Head("question answering", "squad", {"max_query_length": 8, "doc_stride": 8}),
    Head("tagger", "ner", {"labels": ["O", "B-X", "I-X"], "doc_stride": 8}),
    Head("tagger with CRF", "ner", {"labels": ["O", "B-X", "I-X"], "doc_stride": 8, "crf": True}),
    Head("embeddings", "retrieval", {"group_size": 4}),
    Head("sparse vectors", "splade", {"group_size": 4}),
    Head("reranker", "reranking"),
    Head("masked words, rotary positions, windows and gates", "pretraining", {"sentence_task": "none"}, MODERN),
    Head(
        "masked words, distances between words",
        "pretraining",
        {"sentence_task": "none"},
        {"position_buckets": 16, "type_vocab_size": 0},
    ),
    Head(
        "masked words, one layer used twice",
        "pretraining",
        {"sentence_task": "sop"},
        {"layer_groups": 1, "embedding_size": 32},
    ),
)


def head_config(task: str, options: dict[str, Any], sizes: dict[str, Any], folder: str, **training: Any) -> Config:
    """Returns the configuration of a head, on a small model without dropout."""
    lengths = {"max_seq_length": S} | ({"max_predictions_per_seq": P} if task == "pretraining" else {})
    values = {
        "task": task,
        "model": SIZES | sizes,
        "options": lengths,
        "tokenizer": {"vocab_file": os.path.join(folder, VOCAB_FILE)},
        "optimizer": {"learning_rate": 1e-4, "schedule": "constant", "warmup_steps": 0},
        "training": {
            "batch_size": B,
            "eval_batch_size": B,
            "steps": STEPS,
            "log_every": 1,
            "save_every": 5,
            "steps_per_loop": 1,
        }
        | training,
    }
    return build(Config, merge(values, {"options": options}))


def write_records(path: str, count: int) -> None:
    """Writes records for pre-training, in which each word's id is that of the word before it plus one."""
    rng, places = np.random.default_rng(0), np.arange(S)
    lengths, first_ids = rng.integers(S // 2, S + 1, (count, 1)), rng.integers(5, V, (count, 1))
    real = places < lengths
    originals = ((first_ids + places - 5) % (V - 5) + 5) * real
    # real tokens in a random order
    order = np.argsort(np.where(real & (places > 0), rng.random((count, S)), 1.0), axis=1)
    positions = np.sort(order[:, :P], axis=1)
    ids = originals.copy()
    np.put_along_axis(ids, positions, WORDS.index("[MASK]"), axis=1)
    values = {
        "input_ids": ids,
        "input_mask": real,
        "segment_ids": real & (places > lengths // 2),
        "masked_lm_positions": positions,
        "masked_lm_ids": np.take_along_axis(originals, positions, axis=1),
        "next_sentence_labels": rng.integers(0, 2, (count, 1)),
    }
    encoder = records.make_example_encoder(records.pretraining_features(S, P))
    encoded = encoder.encode_values(
        {name: value.astype(np.int32) for name, value in values.items()}
        | {"masked_lm_weights": np.ones((count, P), np.float32)}
    )
    pathlib.Path(path).write_bytes(encoded.tobytes())
