"""Reads and writes our own checkpoints."""

import dataclasses
import os
import typing
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from official_bert.config import Config, TokenizerConfig
from official_bert.data.tagged.tag_letters import are_of_chunks
from official_bert.dotted_names import by_name
from official_bert.models.encoder import GENERATOR, weights_by_name
from official_bert.models.interchange import casing, stored_models
from official_bert.models.interchange.names import NameTable, Weights, in_our_shape
from official_bert.models.interchange.stored_models import Fields, Kind, StoredModel, Values
from official_bert.models.vector_layers import VectorLayer
from official_bert.run_folder import CHECKPOINT, RunFolder, tuned_for

NAME = "checkpoint of ours"
PREFIX, VALUE = "weights/", "/.ATTRIBUTES/VARIABLE_VALUE"
# The tasks whose models have these heads, so that a converted model is a run's folder, which can be used and exported.
TASKS = {
    "": "pretraining",
    "pretraining": "pretraining",
    "classifier": "classification",
    "choice": "swag",
    "tagger": "ner",
    "span": "squad",
    "replaced": "pretraining",
    "decoder": "text_to_text",
}
VECTOR_OPTIONS = ("normalize", "include_prompt", "dimensions", "default_prompt")  # of that task, and of `StoredModel`
SIDES = ("query", "passage")  # with a prompt in training
VECTORS = "retrieval"  # the task of encoders that say how they make a vector of a text
WINDOWS = {"tagger": 128, "span": 384}  # tokens
HEAD_FOR_SENTENCES = "next_sentence/output_bias"
TABLE = NameTable([])  # names are the same on both sides


def named_weights(model: keras.Model) -> dict[str, tf.Variable]:
    """Returns the model's weights by their names in checkpoints."""
    return {name: variable.value for name, variable in weights_by_name(model).items()}


def is_checkpoint_of(names: Any) -> bool:
    """Returns whether these are the variable names of one of our checkpoints."""
    return any(name.startswith(PREFIX) and "_transformer_layers" not in name for name in names)


def weight_names(prefix: str) -> list[str]:
    """Returns our names of the weights in one of our checkpoints."""
    return [*_keys(tf.train.load_checkpoint(prefix))]


def _keys(reader: Any) -> dict[str, str]:
    """Returns the keys of the weights in a checkpoint by our names."""
    keys = [key for key in sorted(reader.get_variable_to_shape_map()) if key.startswith(PREFIX)]
    return {key.removeprefix(PREFIX).removesuffix(VALUE).replace(".S", "/"): key for key in keys}


def read(prefix: str) -> StoredModel:
    """Returns the model in one of our checkpoints, with the configuration in its run's `config.yaml`."""
    reader = tf.train.load_checkpoint(prefix)
    weights = {name: reader.get_tensor(key) for name, key in _keys(reader).items()}
    run = RunFolder.around(prefix)
    config, vocab = run.recorded_config() if run.has_begun else None, stored_models.read_vocab(run.path)
    tokenizer = stored_models.read_tokenizer(run.path)
    stored = StoredModel(
        origin=f"{NAME} {prefix}",
        weights=weights,
        table=TABLE,
        vocab=vocab,
        tokenizer=tokenizer,
        head=stored_models.head_of(weights, prefix),
    )
    stored = stored if config is None else _as_run_says(stored, config, prefix)
    if not any(name.startswith(f"{GENERATOR}/") for name in weights):
        return stored
    told_apart: Callable[[StoredModel, Config | None], StoredModel]
    told_apart = by_name("official_bert.models.interchange.members.generators").told_apart
    return told_apart(stored, config)


def _as_run_says(stored: StoredModel, config: Config, prefix: str) -> StoredModel:
    """Returns the model with the fields that its run's configuration, and the values tuned for its weights, give."""
    weights, head = stored.weights, stored.head
    threshold = config.options.get("threshold")
    if isinstance(threshold, str):  # to be tuned: the number that was tuned beside the weights, if there is one
        threshold = tuned_for(prefix).get("threshold", threshold)
    # A checkpoint that was converted may not say what a left-to-right model has learned to predict.
    objective = config.options.get("objective", "masked_lm" if config.model.attention == "bidirectional" else "")
    return dataclasses.replace(
        stored,
        config=config.model,
        head="choice" if config.task == TASKS["choice"] else head,
        labels=[str(label) for label in config.options.get("labels") or ()],
        kind=_kind_of(config, weights) if head == "classifier" else "",
        threshold=threshold,
        objective=objective if head == "pretraining" else "",
        objective_options=config.options if head == "decoder" else {},
        sentence_task=config.options.get("sentence_task", "nsp") if HEAD_FOR_SENTENCES in weights else "",
        # Without a vocabulary, nobody has chosen the default.
        do_lower_case=None
        if config.tokenizer.do_lower_case and stored.vocab is None and not stored.tokenizer
        else config.tokenizer.do_lower_case,
        **(_vector_settings(config.options) if config.task == VECTORS and not head else {}),
    )


def _vector_settings(options: Values) -> Fields:
    """Returns a run's settings for text vectors."""
    prompts = {side: options[f"{side}_prompt"] for side in SIDES if options.get(f"{side}_prompt")}
    pooling = options.get("pooling", "mean")
    layers = [
        layer if isinstance(layer, VectorLayer) else VectorLayer(**layer) for layer in options.get("vector_layers", ())
    ]
    return {
        "pooling": pooling if isinstance(pooling, str) else tuple(pooling),
        "prompts": prompts | options.get("more_prompts", {}),
        "vector_layers": layers,
        "longest_text": options.get("max_seq_length", 128),
        **{name: options[name] for name in VECTOR_OPTIONS if name in options},
    }


def _kind_of(config: Config, weights: Weights) -> Kind:
    """Returns the kind of a classifier's answers in a run: from the task's option, or from its labels and outputs."""
    if (kind := config.options.get("kind")) in typing.get_args(Kind):
        return typing.cast(Kind, kind)
    if len(weights["classifier/output_bias"]) == 1:
        return "regression"
    return "classifier" if config.options.get("labels") else ""


def write(stored: StoredModel, folder: str) -> list[str]:
    """Writes a run's folder: `config.yaml` with model, tokenizer and task, `vocab.txt`, a checkpoint. Returns [],
    because no weight is left out.

    Raises ValueError for a head that no task has.
    """
    config = stored_models.require_config(stored)
    if stored.head == "replaced":
        raise ValueError(
            f"{stored.origin}: a run that detects replaced tokens also needs a generator, which cannot be converted "
            "to ours; --leave_out='replaced.*' converts the encoder"
        )
    variables = {
        name: tf.Variable(in_our_shape(name, weight, config.num_attention_heads))
        for name, weight in stored.weights.items()
    }
    tf.train.Checkpoint(weights=variables).save(os.path.join(folder, CHECKPOINT))
    RunFolder(folder).write_config(config_of(stored))
    stored_models.write_vocab(stored, folder)
    return []


def config_of(stored: StoredModel) -> Config:
    """Returns a run's configuration with the model, its casing and the task of its head, without the path of a
    vocabulary.

    Texts may be as long as the model allows; tasks that split them into windows keep their default lengths.
    """
    model = stored_models.require_config(stored)
    longest = model.longest_row
    options = class_options(stored) | {
        "max_seq_length": min(stored.longest_text or WINDOWS.get(stored.head, longest), longest)
    }
    tokenizer = TokenizerConfig(do_lower_case=casing.is_lower_case(stored) is not False)
    makes_vectors = not stored.head and stored.pooling
    return Config(
        task=VECTORS if makes_vectors else TASKS[stored.head], model=model, tokenizer=tokenizer, options=options
    )


def class_options(stored: StoredModel) -> Fields:
    """Returns the task's options for the model's head: classes, kind of answers and threshold, or those of its vectors.

    A classifier with one class gives a score. A pre-trained model may have only a masked-LM head, may predict next
    tokens, and its head for sentences may have learned their order.
    """
    if stored.head == "pretraining":
        return _objective_options(stored)
    if stored.head in ("classifier", "tagger"):
        return _label_options(stored)
    if stored.head == "decoder":
        return {**stored.objective_options}
    return _vector_options(stored) if stored.pooling and not stored.head else {}


def _objective_options(stored: StoredModel) -> Fields:
    sentences = {"sentence_task": stored.sentence_task} if stored.sentence_task == "sop" else {}
    if HEAD_FOR_SENTENCES not in stored.weights:
        sentences = {"sentence_task": "none"}
    return sentences | ({"objective": stored.objective} if stored.objective == "next_token" else {})


def _label_options(stored: StoredModel) -> Fields:
    labels = stored_models.class_names(stored)
    if stored.head == "tagger" and not are_of_chunks(labels):
        return {"labels": labels, "scheme": "plain"}
    if stored.kind == "multi_label":
        threshold = {} if stored.threshold is None else {"threshold": stored.threshold}
        return {"labels": labels, "kind": "multi_label", **threshold}
    is_score = stored.head == "classifier" and (stored.kind == "regression" or len(labels) == 1)
    return {"kind": "regression"} if is_score else {"labels": labels}


def _vector_options(stored: StoredModel) -> Fields:
    """Returns the options for text vectors: the reverse of `_vector_settings`."""
    options: Fields = {"pooling": stored.pooling if isinstance(stored.pooling, str) else [*stored.pooling]}
    usual = StoredModel(origin="", weights={}, table=TABLE)
    options |= {name: getattr(stored, name) for name in VECTOR_OPTIONS if getattr(stored, name) != getattr(usual, name)}
    if stored.vector_layers:
        options["vector_layers"] = [dataclasses.asdict(layer) for layer in stored.vector_layers]
    options |= {f"{side}_prompt": stored.prompts[side] for side in SIDES if side in stored.prompts}
    if more := {name: prompt for name, prompt in stored.prompts.items() if name not in SIDES}:
        options["more_prompts"] = more
    return options
