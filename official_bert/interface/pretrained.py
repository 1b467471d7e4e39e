"""Loads the tokenizer, encoder or model from a path: a run, a checkpoint of any format, or an exported model."""

import os

import keras
from absl import logging

from official_bert.interface import keras_objects as keras_objects  # registers the classes of .keras files
from official_bert.models.checkpoints import merged_copy
from official_bert.models.classifier import Classifier
from official_bert.models.encoder import BertEncoder, encoder_within
from official_bert.models.interchange import casing, formats
from official_bert.models.interchange.prefixes import local_checkpoint
from official_bert.models.interchange.projects import hugging_face_tokenizers, keras_files
from official_bert.run_folder import RunFolder
from official_bert.runtimes.saved_tasks import assets_of, task_names
from official_bert.serving.loading import exported_folder
from official_bert.storage.files import is_file
from official_bert.tasks.loading import restore_model
from official_bert.text import loading
from official_bert.text.subwords import tokenizer_files
from official_bert.text.tokenization import FullTokenizer
from official_bert.text.tokenizer import Tokenizer
from official_bert.text.vocab import has_capitals, read_entries

NO_TOKENIZERS = ("config.json", "bert_config.json", "model.safetensors.index.json", "pytorch_model.bin.index.json")


def load_tokenizer(path: str | os.PathLike, do_lower_case: bool | None = None) -> Tokenizer:
    """Returns the tokenizer of a vocabulary file or of the files in docs/tokenizers.md, a training run, a checkpoint of
    any format, an exported model, or a folder of Hugging Face's `tokenizer.save_pretrained` alone.

    `tokenize(text)` gives its tokens, `tokenize_with_offsets(text)` also their places, `encode(texts)` an encoder's
    inputs. Without `do_lower_case`, the files decide whether text is lower-cased; if they do not say, text is
    lower-cased unless the vocabulary has entries with capital letters.

    Warns of tokens that were added to Hugging Face's tokenizer. Raises ValueError if there is no vocabulary, or one of
    another tokenizer.
    """
    vocab_file, lower_case = _vocabulary(os.fspath(path))
    if do_lower_case is not None:
        lower_case = do_lower_case
    if tokenizer_files.is_subwords(vocab_file):
        tokenizer = loading.load(vocab_file)
        casing.agreed(tokenizer.do_lower_case, do_lower_case, vocab_file)
        return tokenizer
    return FullTokenizer(vocab_file, not has_capitals(read_entries(vocab_file)) if lower_case is None else lower_case)


def _vocabulary(path: str) -> tuple[str, bool | None]:
    """Returns the vocabulary file of a path, and whether text is lower-cased (None if the files do not say)."""
    folder = exported_folder(path)
    home = RunFolder(assets_of(folder)) if folder else RunFolder.holding(path)
    if home and home.vocab_file:
        # of several tasks, the first one says how text is lower-cased
        described = RunFolder(assets_of(folder, next(iter(task_names(folder)), ""))) if folder else home
        return home.vocab_file, described.recorded_config().tokenizer.do_lower_case
    if (
        is_file(path)
        and path.endswith((".txt", *tokenizer_files.ENDINGS))
        and os.path.basename(path) not in NO_TOKENIZERS
    ):
        return path, None
    path = local_checkpoint(path)
    alone = None if formats.holds_model(path) else hugging_face_tokenizers.read_alone(path)
    model = alone or formats.read(path)
    if not (vocab_file := formats.vocab_file_of(model)):
        hugging_face_tokenizers.refuse_ids_alone(path)
        raise ValueError(f"{path}: no vocabulary found beside it; give the path of vocab.txt")
    for remark in hugging_face_tokenizers.remarks(path, model.vocab) if os.path.isdir(path) else ():
        logging.warning("%s: %s", path, remark)
    return vocab_file, casing.is_lower_case(model)


def load_encoder(path: str | os.PathLike, return_layers: bool = False, base: str | os.PathLike = "") -> BertEncoder:
    """Returns the encoder of a training run or of a checkpoint of any format, without heads.

    It takes `Tokenizer.encode`'s dict and gives `sequence_output` [B,S,D] (a vector for each token), `pooled_output`
    [B,D] (of [CLS], for the next-sentence head), `embedding_output` [B,S,D] and, with `return_layers`, `layer_outputs`,
    a list of [B,S,D].

    Raises ValueError if there is no checkpoint or weights are missing.
    """
    model = formats.encoder_of(formats.read(os.fspath(path), base=os.fspath(base)))
    if "pooler/kernel" not in model.weights:
        logging.warning("%s: has no pooler: pooled_output comes from random weights", model.origin)
    return encoder_within(formats.make_model(model, return_layers=return_layers))


def load_model(path: str | os.PathLike, base: str | os.PathLike = "", num_labels: int = 0) -> keras.Model:
    """Returns the Keras model of a training run or of a checkpoint of any format, with the heads that the checkpoint
    has; that of a `.keras` file as it was saved, also a model of your own with our layers in it; that which a PEFT
    folder makes of its `base`.

    `BertEncoder`, `Pretrainer`, `Classifier`, `ChoiceClassifier`, `SpanPredictor`, `Tagger` or a run's own model; the
    classes document their inputs and outputs. `num_labels` gives the encoder a new `Classifier` of so many labels
    instead, with random weights.

    Raises ValueError if there is no checkpoint, if weights are missing, if a file holds classes that neither Keras nor
    we know, or for a negative `num_labels`.
    """
    if num_labels < 0:
        raise ValueError(
            f"num_labels: expected a number of labels, or 0 for the checkpoint's own head, got {num_labels}"
        )
    if num_labels:
        model = Classifier(load_encoder(path, base=base), num_labels)
        model.build()
        return model
    if (path := os.fspath(path)).endswith(".keras"):
        return keras_files.load_keras(path)
    return restore_model(merged_copy(path, os.fspath(base)))[1]
