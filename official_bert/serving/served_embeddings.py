"""The served model of embeddings, which every encoder has, and the choice of a task's served model.

B texts, S tokens, D hidden size.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from jaxtyping import Float, Shaped

from official_bert.models.encoder import BertEncoder, encoder_within
from official_bert.models.text_vectors import PROMPT_TOKENS, text_vectors
from official_bert.models.vector_layers import Poolings, poolings_of, vector_width
from official_bert.serving.served_model import ID_INPUTS, Rows, ServedModel, ServingOptions, Tensors, Vectors
from official_bert.serving.task_serving import ServedTask, serving_of
from official_bert.text.graph_loading import AnyGraphTokenizer


class ServedEmbeddings(ServedModel):
    """Returns a vector for each text: the pooled encoder outputs, passed through the model's vector layers
    (`text_vectors`).

    With `dimensions`, only its first numbers; with `normalize`, of length 1. `vectors` is the type of the numbers:
    float32; int8, in 256 steps over each number's range in calibration texts (`calibrate`); or binary, a bit for each
    number above 0, eight in a uint8, the first one highest. `prompts` precede the texts in the signatures of their
    names, and `default_prompt` those in the others. Without `include_prompt`, the prompt's tokens are read but not
    pooled.
    """

    outputs = ("embedding", "token_count", "truncated")
    reads = ("pooling", "normalize", "dimensions", "vectors")

    def __init__(
        self,
        model: keras.Model,
        tokenizer: AnyGraphTokenizer,
        max_seq_length: int,
        pooling: Poolings = "mean",
        normalize: bool = False,
        dimensions: int = 0,
        vectors: Vectors = "float32",
        prompts: Mapping[str, str] | None = None,
        default_prompt: str = "",
        include_prompt: bool = True,
    ):
        super().__init__(model, tokenizer, max_seq_length)
        self.layers = getattr(model, "vector_layers", ())
        if self.layers and len(poolings_of(pooling)) != len(poolings_of(model.settings["pooling"])):
            count = len(poolings_of(model.settings["pooling"]))
            raise ValueError(f"--pooling={pooling}: expected {count} poolings, which the layers behind them read")
        width = (
            getattr(model, "width", 0) if self.layers else vector_width(self.encoder.config.hidden_size, pooling, ())
        )
        self.pooling, self.normalize, self.vectors, self.dimensions = pooling, normalize, vectors, dimensions or width
        self.prompts = prompts or {}
        self.default_prompt, self.include_prompt = default_prompt, include_prompt
        self.ranges: np.ndarray | None = None  # of each number, lowest and highest [2,D]
        if vectors != "float32":
            self.why_not_dense = f"rounding near the border of two steps depends on the runtime (--vectors={vectors})"
        elif not include_prompt and (self.prompts or default_prompt):
            self.why_not_dense = (
                "rows of ids do not mark the prompt's tokens, which are not pooled (options.include_prompt: false)"
            )
        if self.dimensions > width:
            raise ValueError(
                f"--dimensions: expected at most {width}, the numbers of the model's vectors, got {self.dimensions}"
            )
        if vectors == "binary" and self.dimensions % 8:
            raise ValueError(f"--vectors=binary: expected a multiple of 8 numbers, got {self.dimensions}")

    def calibrate(self, texts: Sequence[str], at_once: int = 256) -> None:
        """Computes the range of each number over the vectors of texts, for int8.

        Raises ValueError for fewer than two texts.
        """
        if len(texts) < 2:
            raise ValueError(f"expected at least two texts to calibrate int8 vectors, got {len(texts)}")
        run = tf.function(
            lambda part: self._vectors_of_texts(part, self.default_prompt)["embedding"],
            autograph=False,
            input_signature=[tf.TensorSpec([None], tf.string)],
        )
        parts = [
            run(tf.constant(list(texts[start : start + at_once]))).numpy() for start in range(0, len(texts), at_once)
        ]
        self.ranges = np.stack(
            [np.min([part.min(axis=0) for part in parts], axis=0), np.max([part.max(axis=0) for part in parts], axis=0)]
        )

    def _vectors_of(self, inputs: Rows, prompt_tokens: int = 0) -> dict[str, Float[Any, "B D"]]:
        """Returns `embedding` [B,D], float32, of rows of ids, whose first `prompt_tokens` are not pooled."""

        def compute(part: Tensors, _: tf.Tensor) -> Mapping[str, tf.Tensor]:
            more = {PROMPT_TOKENS: tf.fill([tf.shape(part["input_ids"])[0], 1], prompt_tokens)} if prompt_tokens else {}
            return self.run_model(part, **more)

        return self.run(
            {name: inputs[name] for name in ID_INPUTS}, {"embedding": tf.TensorSpec([None, self.dimensions])}, compute
        )

    def _vectors_of_texts(self, texts: Shaped[Any, " B"], prompt: str) -> dict[str, Shaped[Any, "B ..."]]:
        """Returns `embedding` [B,D], float32, of texts after a prompt, `token_count` [B] and `truncated` [B]."""
        features, truncated = self.pack(self.tokenizer.tokenize(tf.strings.join([prompt, texts]) if prompt else texts))
        vectors = self._vectors_of(features, 0 if self.include_prompt else self._tokens_of(prompt))
        return {**vectors, "token_count": tf.reduce_sum(features["input_mask"], axis=1), "truncated": truncated}

    def _tokens_of(self, prompt: str) -> int:
        """Returns how many tokens a prompt has, with those before it ([CLS]) but not those after it ([SEP]); 0 without
        a prompt.
        """
        if not prompt:
            return 0
        with tf.init_scope():
            ids = self.pack(self.tokenizer.tokenize(tf.constant([prompt])))[0]["input_ids"].numpy()[0]
        return len(ids) - (int(ids[-1]) in self.special.values())

    def answer_rows(self, inputs: Tensors) -> dict[str, tf.Tensor]:
        """Returns `embedding` [B,D]; for binary vectors [B,D/8]."""
        return self.finish_rows(self._vectors_of(inputs))

    def call_model(self, inputs: Tensors) -> dict[str, tf.Tensor]:
        """Returns `embedding` [G,D]."""
        vectors = text_vectors(self.encoder, inputs, self.pooling, self.layers, training=False)[:, : self.dimensions]
        return {"embedding": tf.math.l2_normalize(vectors, axis=-1, epsilon=1e-24) if self.normalize else vectors}

    def finish_rows(self, outputs: Tensors) -> dict[str, tf.Tensor]:
        """Returns the vectors in the requested type."""
        vectors = outputs["embedding"]
        if self.vectors == "int8":
            if self.ranges is None:
                raise ValueError(
                    "--vectors=int8: expected --calibration_file, whose texts give the range of each number"
                )
            low, high = self.ranges
            steps = (vectors - low) / np.maximum((high - low) / 255.0, 1e-12) - 128.0
            vectors = tf.cast(tf.clip_by_value(steps, -128.0, 127.0), tf.int8)
        elif self.vectors == "binary":
            bits = tf.reshape(tf.cast(vectors > 0.0, tf.int32), (-1, self.dimensions // 8, 8))
            vectors = tf.cast(tf.reduce_sum(bits * (2 ** np.arange(7, -1, -1, dtype=np.int32)), axis=-1), tf.uint8)
        return {**outputs, "embedding": vectors}

    def answer_text(self, inputs: Tensors) -> dict[str, tf.Tensor]:
        """Returns `embedding` [B,D], `token_count` [B] ([CLS] and [SEP] included) and `truncated` [B]."""
        return self.answer_prompted(inputs, self.default_prompt)

    def answer_prompted(self, inputs: Tensors, prompt: str) -> dict[str, tf.Tensor]:
        """Returns the outputs of `answer_text` for texts after `prompt` instead of the default prompt."""
        return self.finish_rows(self._vectors_of_texts(inputs["text"], prompt))

    @staticmethod
    def describe(row: Mapping[str, Any], answer: Mapping[str, Any]) -> list[str]:
        """Returns the numbers of a vector as a line."""
        return [
            "  "
            + " ".join(f"{number:.4f}" if isinstance(number, float) else str(number) for number in answer["embedding"])
        ]


def vector_settings(task: ServedTask) -> dict[str, Any]:
    """Returns a run's settings for embeddings (pooling, prompts ...); {} for a task without embeddings."""
    if task.head != "embeddings":
        return {}
    options = task.options
    return {
        "pooling": options.pooling,
        "normalize": options.normalize,
        "dimensions": options.dimensions,
        "include_prompt": options.include_prompt,
        "default_prompt": options.default_prompt,
        "prompts": options.prompts,
    }


def make_served_model(task: ServedTask, model: keras.Model, options: ServingOptions) -> ServedModel:
    """Returns the served model of a task and its trained model, or of the model's encoder.

    If `options.head` asks for embeddings, a task of embeddings still serves its own, with the run's pooling. Raises
    ValueError if the task's answers are asked for and the model is an encoder alone, and as `ServedModel.make` does.
    """
    if options.head == "embeddings" and (task.head != "embeddings" or isinstance(model, BertEncoder)):
        return ServedEmbeddings.make(task, encoder_within(model), options, **vector_settings(task))
    if unserved := getattr(model, "unserved", ""):
        raise ValueError(f"--head: {unserved} cannot be served: expected --head=embeddings")
    if isinstance(model, BertEncoder):
        raise ValueError("--head: this checkpoint is an encoder without a head: expected --head=embeddings")
    return serving_of(task, task.config.task).make(task, model, options)
