"""What a served model answers, from text or from ids: tokenizer, packing, model and post-processing in one graph.

A class for each kind of head. Both of its SavedModels call the same model and the same post-processing, so a text gives
what its ids give. Names of inputs and outputs are those of the records and of docs/serving_models.md.

B texts, S tokens, M blanks, C choices.
"""

import abc
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import keras
import tensorflow as tf

from official_bert.serving import post_processing
from official_bert.text import graph_packing
from official_bert.text.graph import GraphTokenizer

Tensors = Mapping[str, tf.Tensor]
ROWS = {name: tf.TensorSpec([None, None], tf.int32, name) for name in ("input_ids", "input_mask", "segment_ids")}
MASK = "[MASK]"


def texts(*names: str) -> dict[str, tf.TensorSpec]:
    """Inputs of one string a text."""
    return {name: tf.TensorSpec([None], tf.string, name) for name in names}


class ServedModel(tf.Module, abc.ABC):
    """A model with what stands before and behind it. `max_seq_length` is the longest row that it takes.

    `ids_inputs` and `text_inputs` are the signatures of its two SavedModels.
    """

    ids_inputs: Mapping[str, tf.TensorSpec] = ROWS
    text_inputs: Mapping[str, tf.TensorSpec] = texts("text")
    labels: Sequence[str] = ()

    def __init__(self, model: keras.Model, tokenizer: GraphTokenizer, max_seq_length: int):
        super().__init__()
        self.model = model
        self.tokenizer = tokenizer
        self.max_seq_length = max_seq_length
        self.special = {name: tokenizer.special_id(f"[{name}]") for name in ("PAD", "UNK", "CLS", "SEP", "MASK")}

    @abc.abstractmethod
    def answer_ids(self, inputs: Tensors) -> dict[str, tf.Tensor]:
        """Outputs of the `ids` SavedModel for inputs of `ids_inputs`."""

    @abc.abstractmethod
    def answer_text(self, inputs: Tensors) -> dict[str, tf.Tensor]:
        """Outputs of the `text` SavedModel for inputs of `text_inputs`."""

    def run(self, inputs: Tensors, **more: tf.Tensor) -> Any:
        """The model's outputs for rows [B,S]; a row that is too long is refused by name."""
        length = tf.shape(inputs["input_ids"])[-1]
        message = f"input_ids: expected at most {self.max_seq_length} tokens in a row"
        with tf.control_dependencies([tf.debugging.assert_less_equal(length, self.max_seq_length, message)]):
            features = {name: tf.identity(inputs[name]) for name in ROWS}
        return self.model({**features, **more}, training=False)

    def pack(self, first: tf.RaggedTensor, second: tf.RaggedTensor | None = None) -> tuple[dict, tf.Tensor]:
        """Rows of ids as in training, cut to the longest row that the model takes, and whether each was cut [B]."""
        layout, truncated = graph_packing.pack_batch(first, second, self.special["CLS"], self.special["SEP"],
                                                     self.max_seq_length, self.special["PAD"])
        return layout.features(), truncated


class FillMask(ServedModel):
    """The words that may stand at each [MASK] of a text: the masked-LM head of pre-training."""

    ids_inputs = {**ROWS, "masked_lm_positions": tf.TensorSpec([None, None], tf.int32, "masked_lm_positions")}

    def __init__(self, model: keras.Model, tokenizer: GraphTokenizer, max_seq_length: int, top_k: int = 5):
        super().__init__(model, tokenizer, max_seq_length)
        self.top_k = min(top_k, len(tokenizer.vocab))
        self.words = tf.constant(list(tokenizer.vocab))

    def answer_ids(self, inputs: Tensors) -> dict[str, tf.Tensor]:
        """`logits` [B,M,V] at `masked_lm_positions` [B,M]."""
        return {"logits": self.run(inputs, masked_lm_positions=inputs["masked_lm_positions"])["mlm_logits"]}

    def answer_text(self, inputs: Tensors) -> dict[str, tf.Tensor]:
        """`tokens`, `probabilities` [B,M,K]: the K best words for each [MASK], in order, and `truncated` [B]."""
        features, truncated = self.pack(self._tokenize(inputs["text"]))
        blanks = tf.equal(features["input_ids"], self.special["MASK"])
        places = tf.RaggedTensor.from_value_rowids(tf.where(blanks)[:, 1], tf.where(blanks)[:, 0],
                                                   nrows=tf.shape(blanks, tf.int64)[0], validate=False)
        positions = tf.cast(places.to_tensor(), tf.int32)                             # [B,M]
        present = tf.sequence_mask(places.row_lengths(), tf.shape(positions)[1])
        logits = self.answer_ids({**features, "masked_lm_positions": positions})["logits"]
        return {**post_processing.best_words(logits, present, self.words, self.top_k), "truncated": truncated}

    def _tokenize(self, text: tf.Tensor) -> tf.RaggedTensor:
        """Ids of texts with [MASK] in them, which the tokenizer alone would split into `[`, `mask` and `]`."""
        parts = tf.strings.split(text, MASK)                                          # [B,(M+1)]
        ids = self.tokenizer.tokenize(parts.values)
        ends_text = tf.scatter_nd(parts.row_splits[1:, None] - 1, tf.ones_like(parts.row_splits[1:]),
                                  tf.shape(parts.values, tf.int64))
        masks = tf.RaggedTensor.from_row_lengths(
            tf.fill([tf.size(ends_text) - tf.size(parts.row_splits) + 1], self.special["MASK"]), 1 - ends_text,
            validate=False)
        joined = tf.concat([ids, masks], axis=1)
        return tf.RaggedTensor.from_row_splits(joined.values, tf.gather(joined.row_splits, parts.row_splits),
                                               validate=False)


class Classifier(ServedModel):
    """One label of several, several labels at once, or a score, for one text or two."""

    def __init__(self, model: keras.Model, tokenizer: GraphTokenizer, max_seq_length: int, *,
                 kind: Literal["classifier", "multi_label", "regression"] = "classifier", labels: Sequence[str] = (),
                 pairs: bool = False, threshold: float = 0.5):
        super().__init__(model, tokenizer, max_seq_length)
        self.kind, self.labels, self.threshold = kind, tuple(labels), threshold
        self.text_inputs = texts("text", "text_pair") if pairs else texts("text")

    def answer_ids(self, inputs: Tensors) -> dict[str, tf.Tensor]:
        """`label` [B] or `labels` [B,most], `probabilities`, `logits` [B,C]; or `score` [B]."""
        logits = self.run(inputs)["logits"]
        if self.kind == "regression":
            return {"score": tf.reshape(logits, [-1])}
        if self.kind == "multi_label":
            return post_processing.several_labels(logits, self.labels, self.threshold)
        return post_processing.one_label(logits, self.labels)

    def answer_text(self, inputs: Tensors) -> dict[str, tf.Tensor]:
        """What `answer_ids` gives, and `truncated` [B]."""
        second = self.tokenizer.tokenize(inputs["text_pair"]) if "text_pair" in self.text_inputs else None
        features, truncated = self.pack(self.tokenizer.tokenize(inputs["text"]), second)
        return {**self.answer_ids(features), "truncated": truncated}


class Choice(ServedModel):
    """Which of several continuations follows a text (SWAG)."""

    ids_inputs = {name: tf.TensorSpec([None, None, None], tf.int32, name) for name in ROWS}
    text_inputs = {**texts("text"), "choices": tf.TensorSpec([None, None], tf.string, "choices")}

    def answer_ids(self, inputs: Tensors) -> dict[str, tf.Tensor]:
        """`choice` [B], `probabilities` [B,C] of rows [B,C,S]."""
        logits = self.run(inputs)["logits"]
        return {"choice": tf.argmax(logits, axis=-1, output_type=tf.int32), "probabilities": tf.nn.softmax(logits)}

    def answer_text(self, inputs: Tensors) -> dict[str, tf.Tensor]:
        """What `answer_ids` gives for `text` [B] before each of `choices` [B,C]; `truncated` [B] where any was cut."""
        batch, count = tf.unstack(tf.shape(inputs["choices"]))
        first = tf.gather(self.tokenizer.tokenize(inputs["text"]), tf.repeat(tf.range(batch), count))
        features, truncated = self.pack(first, self.tokenizer.tokenize(tf.reshape(inputs["choices"], [-1])))
        rows = {name: tf.reshape(value, [batch, count, tf.shape(value)[1]]) for name, value in features.items()}
        return {**self.answer_ids(rows), "truncated": tf.reduce_any(tf.reshape(truncated, [batch, count]), axis=1)}


class Embeddings(ServedModel):
    """A vector for a text: the encoder's last row of [CLS], or the mean of all rows."""

    def __init__(self, model: keras.Model, tokenizer: GraphTokenizer, max_seq_length: int,
                 pooling: Literal["cls", "mean"] = "mean"):
        super().__init__(model, tokenizer, max_seq_length)
        self.pooling = pooling

    def answer_ids(self, inputs: Tensors) -> dict[str, tf.Tensor]:
        """`embedding` [B,D]."""
        if self.pooling == "cls":
            first = tf.zeros_like(inputs["input_ids"][:, :1])
            return {"embedding": self.run(inputs, output_positions=first)["sequence_output"][:, 0]}
        sequence_output = self.run(inputs)["sequence_output"]
        return {"embedding": post_processing.mean_of_tokens(sequence_output, inputs["input_mask"])}

    def answer_text(self, inputs: Tensors) -> dict[str, tf.Tensor]:
        """What `answer_ids` gives, and `truncated` [B]."""
        features, truncated = self.pack(self.tokenizer.tokenize(inputs["text"]))
        return {**self.answer_ids(features), "truncated": truncated}
