"""Reads `.keras` files."""

import os
import re

import keras

from official_bert.config import ModelConfig
from official_bert.dotted_names import by_name
from official_bert.models.bi_encoder import BiEncoder
from official_bert.models.classifier import ChoiceClassifier, Classifier, SpanPredictor, Tagger
from official_bert.models.encoder import BertEncoder, encoder_settings, encoder_within
from official_bert.models.interchange import stored_models
from official_bert.models.interchange.projects import ours
from official_bert.models.interchange.stored_models import StoredModel
from official_bert.models.pretrainer import Pretrainer
from official_bert.models.replaced_tokens import ReplacedTokenDetector
from official_bert.runtimes.finite import require_finite
from official_bert.storage.stores import locate

NAME = ".keras file"
NO_CLASSES = (
    "the file has neither the names of the classes nor whether a text has several; each text gets one of LABEL_0, "
    "LABEL_1, ... (convert_checkpoint --labels names them; a run's folder has both)"
)
# what a .keras file may hold
MODELS = (BertEncoder, BiEncoder, Pretrainer, Classifier, Tagger, SpanPredictor, ReplacedTokenDetector)
UNKNOWN_CLASS = re.compile("Could not locate [a-z]+ '([^']+)'")  # in Keras' errors


def load_keras(path: str) -> keras.Model:
    """Returns the model in a `.keras` file, without its optimizer.

    Raises ValueError for a file that is missing, damaged or holds an unknown class, and for weights that are NaN or
    infinite.
    """
    model = _load_keras(locate(path).fetch())
    require_finite({variable.path: variable for variable in model.variables}, path)
    return model


def _load_keras(path: str) -> keras.Model:
    by_name("official_bert.interface.keras_objects")  # registers every class that a file may hold
    try:
        return keras.saving.load_model(path, compile=False)
    except (OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        unknown_class = UNKNOWN_CLASS.search(str(error))
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        if unknown_class:
            reason = f"it holds a class {unknown_class[1]}, which is not registered with Keras: import its module first"
        raise ValueError(f"{path}: cannot be read as a Keras model: {reason}") from None


def read(path: str) -> StoredModel:
    """Returns the model in one of our `.keras` files. A left-to-right model with a head for words is assumed to predict
    next tokens.

    Raises ValueError for a damaged file, and for a model that is not ours.
    """
    model = _load_keras(path)
    if not isinstance(model, MODELS):
        raise ValueError(f"{path}: expected a BERT model of ours, got {type(model).__name__}")
    encoder = encoder_within(model)
    fields = encoder_settings(encoder.config)
    weights = {name: value.numpy() for name, value in ours.named_weights(model).items()}
    head = stored_models.head_of(weights, path)
    predicts_next = head == "pretraining" and fields["attention"] == "left_to_right" and not fields["bilstm_layers"]
    return StoredModel(
        origin=f"{NAME} {path}",
        weights=weights,
        table=ours.TABLE,
        config=ModelConfig(**fields),
        head="choice" if isinstance(model, ChoiceClassifier) else head,
        objective="next_token" if predicts_next else "",
        vocab=stored_models.read_vocab(os.path.dirname(path)),
        warnings=[NO_CLASSES] if head == "classifier" and weights["classifier/output_bias"].size > 1 else [],
        notes=["the file does not hold the objective; a left-to-right model is assumed to predict the next token"]
        if predicts_next
        else [],
    )
