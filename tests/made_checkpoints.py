"""Small checkpoints of every head, to be written in every format."""

import dataclasses

import numpy as np

from official_bert.config import ModelConfig
from official_bert.models import checkpoints
from official_bert.models.classifier import ChoiceClassifier, Classifier
from official_bert.models.encoder import make_encoder
from official_bert.models.interchange import formats
from official_bert.models.interchange.projects import ours
from official_bert.models.pretrainer import Pretrainer
from official_bert.models.span_predictor import SpanPredictor
from official_bert.models.tagger import Tagger

SMALL = ModelConfig(vocab_size=20, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
                    max_position_embeddings=12)
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmno"]
HEADS = {"": make_encoder, "pretraining": Pretrainer.make, "classifier": lambda config: Classifier.make(config, {"num_classes": 3}),
         "choice": ChoiceClassifier.make, "tagger": lambda config: Tagger.make(config, {"num_tags": 5}), "span": SpanPredictor.make}


def stored_small(head, **changes):
    """Returns a small model with a head, as a reader gives it; the weights are always the same."""
    config = dataclasses.replace(SMALL, **changes)
    model, rng = HEADS[head](config), np.random.default_rng(3)
    for variable in model.weights:
        variable.assign(rng.normal(scale=0.2, size=variable.shape))
    weights = {name: value.numpy() for name, value in checkpoints.named_weights(model).items()}
    return formats.StoredModel(origin="a model made here", weights=weights, table=ours.TABLE, config=config, head=head,
                               vocab=WORDS, do_lower_case=False)
