"""Small checkpoints of every head, to be written in every format."""

import dataclasses
import json
import pathlib

import made_tokenizers
import numpy as np
from safetensors.numpy import load_file, save_file

from official_bert.config import ModelConfig
from official_bert.models import checkpoints
from official_bert.models.classifier import ChoiceClassifier, Classifier, SpanPredictor, Tagger
from official_bert.models.encoder import make_encoder
from official_bert.models.interchange import formats
from official_bert.models.interchange.projects import ours
from official_bert.models.pretrainer import Pretrainer

SMALL = ModelConfig(
    vocab_size=20,
    hidden_size=8,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=12,
)
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmno"]
HEADS = {
    "": make_encoder,
    "pretraining": Pretrainer.make,
    "classifier": lambda config: Classifier.make(config, {"num_classes": 3}),
    "choice": ChoiceClassifier.make,
    "tagger": lambda config: Tagger.make(config, {"num_tags": 5}),
    "span": SpanPredictor.make,
}


FAMILY = pathlib.Path(__file__).parent / "golden" / "family"
# Relatives with tokenizers of their own, and those over WordPieces.
CLASSES = {
    "roberta": "RobertaForMaskedLM",
    "xlm_roberta": "XLMRobertaForMaskedLM",
    "mpnet": "MPNetForMaskedLM",
    "albert": "AlbertForPreTraining",
    "modernbert": "ModernBertForMaskedLM",
    "gte": "GteForMaskedLM",
    "jina_embeddings_v3": "JinaEmbeddingsV3ForMaskedLM",
}
TOKENIZERS = dict.fromkeys(("gte", "jina_embeddings_v3"), "xlm_roberta")  # of the published models
OVER_WORD_PIECES = {
    "bert": "BertForPreTraining",
    "ernie": "ErnieForPreTraining",
    "distilbert": "DistilBertForMaskedLM",
    "electra_discriminator": "ElectraForPreTraining",
    "electra_generator": "ElectraForMaskedLM",
    "deberta_v3": "DebertaV2ForMaskedLM",
    "deberta_v2_conv": "DebertaV2ForMaskedLM",
    "big_bird_full": "BigBirdForMaskedLM",
    "nomic_bert": "NomicBertForMaskedLM",
    "jina_bert": "JinaBertForMaskedLM",
    "jina_bert_code": "JinaBertForMaskedLM",
}


def write_relative(folder: pathlib.Path, kind: str, rows: int = 1300, positions: int = 130) -> str:
    """Writes a small random model of a relative in Hugging Face's layout, with its tokenizer and more rows than that
    needs.
    """
    source, rng = FAMILY / kind / {**CLASSES, **OVER_WORD_PIECES}[kind], np.random.default_rng(0)
    made_tokenizers.write(folder, TOKENIZERS.get(kind, kind) if kind in CLASSES else "bert")
    config, weights = json.loads((source / "config.json").read_text()), load_file(source / "model.safetensors")
    for name, weight in weights.items():
        length = positions if "position_embeddings" in name else rows if len(weight) == config["vocab_size"] else 0
        if length:
            weights[name] = rng.normal(scale=0.1, size=(length, *weight.shape[1:])).astype("float32")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": rows, "max_position_embeddings": positions}))
    return str(folder)


def stored_small(head, **changes):
    """Returns a small model with a head, as a reader gives it; the weights are always the same."""
    config = dataclasses.replace(SMALL, **changes)
    model, rng = HEADS[head](config), np.random.default_rng(3)
    for variable in model.weights:
        variable.assign(rng.normal(scale=0.2, size=variable.shape))
    weights = {name: value.numpy() for name, value in checkpoints.named_weights(model).items()}
    return formats.StoredModel(
        origin="a model made here",
        weights=weights,
        table=ours.TABLE,
        config=config,
        head=head,
        vocab=WORDS,
        do_lower_case=False,
    )
