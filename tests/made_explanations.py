"""Small models whose explanations by captum are stored: Hugging Face's layout, weights drawn from a seed.

Both environments make them: this one, and that of PyTorch (`captum_explanations.py`).
"""

import json
import pathlib

import numpy as np
from safetensors.numpy import save_file

WORDS = """
the a an old new river stone boat song man woman city , . : ? who where crosses sang saw cross loves to in by and not
very good bad dull bright Anna Ben Lyon Oslo lives sings lake
"""
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS.split(), "##s", "##es", "##er", "##ly", "##ing"]
WIDTH, INNER, LAYERS, PLACES = 16, 24, 2, 96
TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
LABELS = ["bad", "good", "neither"]
# By kind: the class, the names of its outputs, and five rows.
KINDS = {
    "classifier": (
        "BertForSequenceClassification",
        LABELS,
        [
            {"text": "the song by Anna , a very good old song ."},
            {"text": "not good , not bad : the city crosses the river ."},
            {"text": "a bright man sings , a woman sang very badly"},
            {"text": "bad bad boats ."},
            {"text": "who sings to the old stones by the lake in Oslo ? the boater , and very badly ."},
        ],
    ),
    "tagger": (
        "BertForTokenClassification",
        TAGS,
        [
            {"text": "Anna crosses the river to Lyon .", "word": "Anna"},
            {"text": "the old man in Oslo loves Ben .", "word": "Oslo"},
            {"text": "Ben sang , and Anna saw the boats .", "word": "saw"},
            {"text": "a woman lives by the lakes .", "word": "lakes"},
            {"text": "who saw Lyon and not Oslo ?", "word": "Lyon"},
        ],
    ),
    "span": (
        "BertForQuestionAnswering",
        [],
        [
            {"question": "who crosses the river ?", "context": "the old man crosses the river by boat ."},
            {"question": "where lives Anna ?", "context": "Anna lives in Lyon , Ben lives in Oslo ."},
            {"question": "who sang ?", "context": "Ben sang a very old song to the stones ."},
            {"question": "where ?", "context": "by the lakes in the new city"},
            {"question": "who loves the dull song ?", "context": "not Anna , not Ben : the boaters , and the woman ."},
        ],
    ),
}


def weights_of(kind: str) -> dict[str, np.ndarray]:
    """Returns the tensors of a kind's model by Hugging Face's names, always the same ones."""
    outputs = len(KINDS[kind][1]) or 2
    shapes = {
        "bert.embeddings.word_embeddings.weight": (len(VOCAB), WIDTH),
        "bert.embeddings.position_embeddings.weight": (PLACES, WIDTH),
        "bert.embeddings.token_type_embeddings.weight": (2, WIDTH),
        "bert.embeddings.LayerNorm.weight": (WIDTH,),
        "bert.embeddings.LayerNorm.bias": (WIDTH,),
        ("qa_outputs" if kind == "span" else "classifier") + ".weight": (outputs, WIDTH),
        ("qa_outputs" if kind == "span" else "classifier") + ".bias": (outputs,),
    }
    products = {f"attention.self.{name}": (WIDTH, WIDTH) for name in ("query", "key", "value")}
    products |= {"attention.output.dense": (WIDTH, WIDTH), "intermediate.dense": (INNER, WIDTH)}
    products |= {"output.dense": (WIDTH, INNER), "attention.output.LayerNorm": (WIDTH,), "output.LayerNorm": (WIDTH,)}
    for layer in range(LAYERS):
        for name, shape in products.items():
            shapes[f"bert.encoder.layer.{layer}.{name}.weight"] = shape
            shapes[f"bert.encoder.layer.{layer}.{name}.bias"] = shape[:1]
    if kind == "classifier":
        shapes |= {"bert.pooler.dense.weight": (WIDTH, WIDTH), "bert.pooler.dense.bias": (WIDTH,)}
    rng = np.random.default_rng([4, sorted(KINDS).index(kind)])
    drawn = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    # words outweigh the rest, so that answers differ
    wide = ("word_embeddings", "classifier", "qa_outputs")
    scales = {
        name: 1.0 if any(part in name for part in wide) else 0.3 if value.ndim > 1 else 0.1
        for name, value in drawn.items()
    }
    return {name: value * scales[name] + ("LayerNorm.weight" in name) for name, value in drawn.items()}


def write_model(folder: pathlib.Path, kind: str) -> str:
    """Writes a kind's model and vocabulary."""
    architecture, names, _ = KINDS[kind]
    config = {
        "architectures": [architecture],
        "model_type": "bert",
        "vocab_size": len(VOCAB),
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 2,
        "intermediate_size": INNER,
        "max_position_embeddings": PLACES,
        "type_vocab_size": 2,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "pad_token_id": 0,
    }
    if names:
        config |= {"id2label": dict(enumerate(names)), "label2id": {name: n for n, name in enumerate(names)}}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "vocab.txt").write_text("\n".join(VOCAB) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False}))
    save_file(weights_of(kind), folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)
