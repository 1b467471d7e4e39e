"""The base of served models: tokenizer, packing, model and post-processing in one graph that answers text, or ids.

Each kind of answer has a class, in the folder of the tasks that give it; embeddings, which every encoder gives, are
here. Both SavedModels of a served model call the same model and the same post-processing, so a text gives the same
answer as its ids. Names of inputs and outputs are those of the records and of docs/serving_models.md.

B texts, S tokens, D hidden size, R rows (a text longer than the model has several windows).
"""

import abc
import dataclasses
import math
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

import keras
import numpy as np
import tensorflow as tf
from jaxtyping import Float, Int, Shaped

from official_bert.config import check_length
from official_bert.fields import Constraint, Count, Natural, NonNegative, Probability, check_fields
from official_bert.models.encoder import BertEncoder, encoder_within
from official_bert.models.text_vectors import PROMPT_TOKENS, text_vectors
from official_bert.models.vector_layers import Pooling, Poolings, poolings_of, vector_width
from official_bert.objectives.calibration import Calibration
from official_bert.serving.bounds import Claim, in_groups, in_range, require
from official_bert.serving.task_serving import ServedTask, serving_of
from official_bert.text import graph_packing, loading
from official_bert.text.graph_loading import AnyGraphTokenizer, load_graph
from official_bert.text.packing import Part

Tensors = Mapping[str, tf.Tensor]
Rows = Mapping[str, Shaped[Any, "B ..."]]
# the features of a group of rows [G,S], and which of all rows these are [G] -> results
Compute = Callable[[Tensors, tf.Tensor], Mapping[str, tf.Tensor]]
# the inputs of a group of rows by name -> the outputs of `call_model`
Engine = Callable[[Tensors], Mapping[str, tf.Tensor]]
ID_INPUTS = {name: tf.TensorSpec([None, None], tf.int32, name) for name in ("input_ids", "input_mask", "segment_ids")}


def text_specs(*names: str) -> dict[str, tf.TensorSpec]:
    """Returns the specs of inputs that have one string a text."""
    return {name: tf.TensorSpec([None], tf.string, name) for name in names}


NO_LIMIT = 2**30
Vectors = Literal["float32", "int8", "binary"]


def _read_by(readers: str, limit: bool = False) -> Any:
    """An option that only some served models read; None if it is not given. `limit`: it bounds the work per text."""
    return dataclasses.field(default=None, metadata={"readers": readers, "limit": limit})


IN_WINDOWS = "question answering, taggers and classifiers in windows"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServingOptions:
    """The user's choices about a served model. The classes that read an option have its default."""

    head: Literal["", "embeddings"] = ""
    """What the model gives; empty: the answers of its task."""
    max_seq_length: int = 0
    """Most tokens of a row; 0: as in training."""
    top_k: Count | None = _read_by("fill-mask models and sparse vectors")
    """Words for each blank, or of a text."""
    pooling: Pooling | None = _read_by("embeddings (--head=embeddings)")
    """Vector of a text: the row of [CLS], the mean or another pooling of all rows."""
    normalize: bool | None = _read_by("embeddings")
    """Vectors of length 1."""
    dimensions: Count | None = _read_by("embeddings")
    """Only these first numbers of a vector are given."""
    vectors: Vectors | None = _read_by("embeddings")
    """Numbers of a vector."""
    pretokenized: bool | None = _read_by("taggers")
    """Words stand between spaces."""
    redact: bool | None = _read_by("taggers")
    """Texts with the type and a number in place of each entity, [PER_1], instead of the entities."""
    pairs: bool | None = _read_by("classifiers")
    """Two texts a row; a run's configuration records it, a published checkpoint does not."""
    threshold: Probability | None = _read_by("classifiers of several labels")
    """Probability from which a label is given."""
    explanations: bool | None = _read_by("classifiers")
    """A signature `explain` that says which words made the answer."""
    max_positions: Count | None = _read_by("fill-mask models", limit=True)
    """Most blanks of a text."""
    passes: Count | None = _read_by("fill-mask models and models that write answers")
    """Passes in which the blanks of a text, or an answer, are filled together, the most confident first."""
    block_size: Count | None = _read_by("models that write answers")
    """Places of an answer that are full before the next ones begin."""
    temperature: NonNegative | None = _read_by("models that write answers")
    """Above 0, words are drawn at random instead of taking the likeliest."""
    seed: Natural | None = _read_by("models that write answers")
    """Of the words that are drawn."""
    beams: Count | None = _read_by("fill-mask models and models with a decoder")
    """Best fillings of all blanks of a text, found together; of a decoder, beginnings of an answer that are kept."""
    max_choices: Count | None = _read_by("choice models", limit=True)
    """Most choices of a text."""
    max_windows: Count | None = _read_by(IN_WINDOWS, limit=True)
    """Most windows over a text."""
    tokens_at_once: Count | None = _read_by(IN_WINDOWS)
    """Most tokens of windows that go through the model at once."""
    no_answer: bool | None = _read_by("question answering")
    """Whether there may be no answer; as trained."""
    null_score_diff_threshold: Annotated[float, Constraint("a number", lambda value: not math.isnan(value))] | None = (
        _read_by("question answering")
    )
    """No answer is given if its score exceeds that of the best answer by more than this; as trained."""
    signature: str | None = _read_by("exported models of several tasks")
    """Task of an exported model of several."""
    bounded: bool = True
    """False: no limits; texts of files may be as long as memory allows."""

    def __post_init__(self) -> None:
        check_fields(self, "--")

    def read(self, names: Sequence[str], reader: str) -> dict[str, Any]:
        """Returns the given values of the options `names`. Raises ValueError for a given option that `reader` does not
        read.

        Without `bounded`, limits that are not given are practically infinite.
        """
        options = {field.name: field.metadata for field in dataclasses.fields(self) if "readers" in field.metadata}
        values = {name: value for name in options if (value := getattr(self, name)) is not None}
        if unread := [name for name in values if name not in names]:
            raise ValueError(f"--{unread[0]}: read by {options[unread[0]]['readers']} alone, got {reader}")
        limits = () if self.bounded else [name for name in names if options[name]["limit"]]
        return dict.fromkeys(limits, NO_LIMIT) | values


class ServedModel(tf.Module, abc.ABC):
    """A model with its pre- and post-processing. `max_seq_length` is the longest row that it takes.

    `ids_inputs` and `text_inputs` are the signatures of its two SavedModels, `outputs` the names of its `text`
    SavedModel's outputs, `reads` the `ServingOptions` that its constructor takes, `longest` the most numbers or strings
    a row that an input may have.

    `padded_text` and `padded_ids` are the outputs of each SavedModel whose second axis is as long as the longest row of
    a batch needs, with the name of what says how much of it is a row's own: an output, numbers [B], or an input that is
    as wide.
    """

    ids_inputs: Mapping[str, tf.TensorSpec] = ID_INPUTS
    text_inputs: Mapping[str, tf.TensorSpec] = text_specs("text")
    outputs: ClassVar[tuple[str, ...]] = ()
    reads: ClassVar[tuple[str, ...]] = ()
    padded_text: ClassVar[Mapping[str, str]] = {}
    padded_ids: ClassVar[Mapping[str, str]] = {}
    labels: Sequence[str] = ()
    tokens_at_once: int = 16384  # in one group of rows, padding included
    options: ServingOptions = ServingOptions()  # that `make` was given
    task_options: type | None = None  # the class of those of the task
    engine: Engine | None = None  # computes rows in place of the model (`serving/formats`)
    group: Callable = staticmethod(in_groups)  # how rows are computed in groups
    # by the name of a signature: in front of the texts of `text`
    prompts: Mapping[str, str] = types.MappingProxyType({})
    calibration = Calibration()  # of the probabilities
    why_not_dense: str = ""  # why the rows' answers cannot be computed in one dense pass, as other formats want it

    def __init__(self, model: keras.Model, tokenizer: AnyGraphTokenizer, max_seq_length: int):
        super().__init__()
        self.model = model
        self.tokenizer = tokenizer
        self.max_seq_length = max_seq_length
        self.longest = dict.fromkeys(ID_INPUTS, max_seq_length)
        self.encoder = encoder_within(model)
        self.template = tokenizer.template
        self.special = {name: tokenizer.special_id(f"[{name}]") for name in ("PAD", "UNK", "CLS", "SEP", "MASK")}

    @classmethod
    def make(cls, task: ServedTask, model: keras.Model, options: ServingOptions, **settings: Any) -> Self:
        """Makes the served model of a task's trained model; `settings` are further arguments of the constructor.

        Raises ValueError for an option that is given and not read, for a vocabulary that is larger than the model's,
        and for a length that the model lacks.
        """
        values = options.read(cls.options_of(settings), f"a model that gives {', '.join(cls.outputs)}")
        vocabulary = task.config.tokenizer
        tokenizer = load_graph(vocabulary.vocab_file, vocabulary.do_lower_case)
        loading.check_rows(vocabulary.vocab_file, task.config.model.vocab_size)
        served = cls(model, tokenizer, _max_seq_length(task, options), **{**settings, **values})
        served.options, served.task_options, served.calibration = options, task.Options, task.answers.calibration
        return served

    @classmethod
    def options_of(cls, settings: Mapping[str, Any]) -> Sequence[str]:
        """Returns the names of the `ServingOptions` that a model with these settings reads."""
        return cls.reads

    def answer_ids(self, inputs: Tensors) -> dict[str, tf.Tensor]:
        """Returns the outputs of the `ids` SavedModel for inputs of `ids_inputs`; rejects bad inputs by name before any
        work is done.
        """
        return self.answer_rows(require(self.claims(inputs), dict(inputs)))

    @abc.abstractmethod
    def answer_rows(self, inputs: Tensors) -> dict[str, tf.Tensor]:
        """Returns the outputs of the `ids` SavedModel for inputs that have been checked, or that were packed here."""

    def answer_text(self, inputs: Tensors) -> dict[str, tf.Tensor]:
        """Returns the outputs of the `text` SavedModel for inputs of `text_inputs`.

        Here the answers to rows of one text or two, and `truncated` [B].
        """
        features, truncated = self.pack(*(self.tokenizer.tokenize(inputs[name]) for name in self.text_inputs))
        return {**self.answer_rows(features), "truncated": truncated}

    def answer_prompted(self, inputs: Tensors, prompt: str) -> dict[str, tf.Tensor]:
        """Returns the outputs of the `text` SavedModel for texts with a prompt in front."""
        return self.answer_text({**inputs, "text": tf.strings.join([prompt, inputs["text"]])})

    def claims(self, inputs: Tensors) -> list[Claim]:
        """Returns the claims about the inputs of `ids_inputs`, for `bounds.require`."""
        shapes = {name: tf.shape(inputs[name]) for name in ID_INPUTS}
        sizes = self.encoder.config
        below = {"input_ids": sizes.vocab_size, "input_mask": 2, "segment_ids": sizes.type_vocab_size or 2}
        return [
            in_range("input_ids: expected rows of", shapes["input_ids"][-1], 1, self.max_seq_length, "tokens"),
            *(
                (
                    tf.reduce_all(tf.equal(shape, shapes["input_ids"])),
                    f"{name}: expected the shape of input_ids",
                    [shape],
                )
                for name, shape in shapes.items()
                if name != "input_ids"
            ),
            *(in_range(f"{name}: expected numbers of", inputs[name], 0, most - 1) for name, most in below.items()),
        ]

    @staticmethod
    def describe(row: Mapping[str, Any], answer: Mapping[str, Any]) -> list[str]:
        """Returns the answer to a row of inputs as lines for a person."""
        return [f"  {answer}"]

    @staticmethod
    def lacks_question(row: Mapping[str, Any], answer: Mapping[str, Any]) -> str:
        """Returns the reason why a row of inputs asks no question, and so has an empty answer; "" if it does, as in
        most models.
        """
        return ""

    @classmethod
    def unpadded(cls, answer: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the answer without its padding to the batch's longest, and without the counts of its own values."""
        real = {name: answer[name][: answer[count]] for name, count in cls.padded_text.items()}
        return {name: real.get(name, value) for name, value in answer.items() if name not in cls.padded_text.values()}

    def run(
        self,
        rows: Rows,
        results: Mapping[str, tf.TensorSpec],
        compute: Compute | None = None,
        places: Int[Any, "B M"] | None = None,
    ) -> dict[str, Shaped[Any, "B ..."]]:
        """Returns the results for rows of features [R,S], computed in groups of similar length; see `in_groups`.

        `compute` returns the results [G,...] of a group's rows, which are cut to the longest; the default is
        `run_model`. `places` [R,M] are not cut off, even if they hold no real token.
        """
        values, order = self.run_groups(rows, results, compute or (lambda part, _: self.run_model(part)), places)
        back = tf.math.invert_permutation(order)
        return {name: tf.gather(value, back) for name, value in values.items()}

    def run_groups(
        self, rows: Rows, results: Mapping[str, tf.TensorSpec], compute: Compute, places: Int[Any, "B M"] | None = None
    ) -> tuple[dict[str, tf.Tensor], Int[Any, " B"]]:
        """Does the same for results of any number of rows, in the order of the groups, which is returned with them."""
        lengths = real_lengths(rows["input_mask"], places)

        def run(group: tf.Tensor) -> Mapping[str, tf.Tensor]:
            longest = tf.reduce_max(tf.concat([tf.gather(lengths, group), [1]], 0))
            return compute({name: tf.gather(value, group)[:, :longest] for name, value in rows.items()}, group)

        return self.group(run, lengths, self.tokens_at_once, results)

    def run_model(self, rows: Rows, **more: tf.Tensor) -> Mapping[str, tf.Tensor]:
        """Returns the model's (or `engine`'s) outputs for rows [G,S], in one pass."""
        inputs = {**{name: rows[name] for name in ID_INPUTS}, **more}
        return self.engine(inputs) if self.engine else self.call_model(inputs)

    def call_model(self, inputs: Rows) -> dict[str, tf.Tensor]:
        """Returns the model's outputs, under the names of the answer, for inputs of `ids_inputs` in one plain pass."""
        return self.model(dict(inputs), training=False)

    def call_dense(self, inputs: Tensors) -> dict[str, tf.Tensor]:
        """Returns the same without any loop, as other formats want it."""
        return self.call_model(inputs)

    def finish_rows(self, outputs: Tensors) -> dict[str, tf.Tensor]:
        """Returns the answer to rows of ids, given the model's outputs for them."""
        return dict(outputs)

    def pack(
        self, first: tf.RaggedTensor, second: tf.RaggedTensor | None = None, part: Part = "head"
    ) -> tuple[dict, tf.Tensor]:
        """Returns rows of ids as in training, cut to the longest row that the model takes, and whether each was cut
        [B].
        """
        layout, truncated = graph_packing.pack_batch(first, second, self.template, self.max_seq_length, part)
        return layout.features(), truncated


def real_lengths(input_mask: Int[Any, "B S"], places: Int[Any, "B M"] | None = None) -> Int[Any, " B"]:
    """Returns the number of tokens [B] to compute for rows with a mask [B,S]: up to the last real token or the last of
    `places`, at least 1.
    """
    lengths = tf.maximum(tf.reduce_max(input_mask * tf.range(1, tf.shape(input_mask)[1] + 1), axis=1), 1)
    return lengths if places is None else tf.maximum(lengths, tf.reduce_max(places, axis=1) + 1)


def lengthened(results: Rows, length: Int[Any, ""]) -> dict[str, Shaped[Any, "B S ..."]]:
    """Returns per-token results of a group [G,S',...] padded to `length` columns by repeating the last column."""
    return {
        name: tf.gather(value, tf.minimum(tf.range(length), tf.shape(value)[1] - 1), axis=1)
        for name, value in results.items()
    }


class ServedEmbeddings(ServedModel):
    """Gives a vector for a text: pooled rows of the encoder, and what the model's layers behind them make of that
    (`text_vectors`).

    With `dimensions`, its first numbers alone; with `normalize`, of length 1. `vectors` are float32; int8, in 256 steps
    over the range of each number in calibration texts (`calibrate`); or binary, a bit for each number above 0, eight in
    a uint8, the first one highest. `prompts` stand in front of the texts of the signatures of their names,
    `default_prompt` in front of others; without `include_prompt`, their tokens are read but not pooled.
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
            self.why_not_dense = (
                f"which step a number at the border of two has depends on the runtime (--vectors={vectors})"
            )
        elif not include_prompt and (self.prompts or default_prompt):
            self.why_not_dense = (
                "rows of ids do not say which tokens are a prompt's, which is not pooled "
                "(options.include_prompt: false)"
            )
        if self.dimensions > width:
            raise ValueError(
                f"--dimensions: expected at most {width}, the numbers of the model's vectors, got {self.dimensions}"
            )
        if vectors == "binary" and self.dimensions % 8:
            raise ValueError(f"--vectors=binary: expected a multiple of 8 numbers, got {self.dimensions}")

    def calibrate(self, texts: Sequence[str], at_once: int = 256) -> None:
        """Finds the range of each number of vectors of texts, for int8. Raises ValueError for fewer than two texts."""
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
        """Returns `embedding` [B,D], float32, of texts behind a prompt, `token_count` [B] and `truncated` [B]."""
        features, truncated = self.pack(self.tokenizer.tokenize(tf.strings.join([prompt, texts]) if prompt else texts))
        vectors = self._vectors_of(features, 0 if self.include_prompt else self._tokens_of(prompt))
        return {**vectors, "token_count": tf.reduce_sum(features["input_mask"], axis=1), "truncated": truncated}

    def _tokens_of(self, prompt: str) -> int:
        """Returns how many tokens a prompt has, those in front of it ([CLS]) included, those behind it ([SEP]) not; 0
        without a prompt.
        """
        if not prompt:
            return 0
        with tf.init_scope():
            ids = self.pack(self.tokenizer.tokenize(tf.constant([prompt])))[0]["input_ids"].numpy()[0]
        return len(ids) - (int(ids[-1]) in self.special.values())

    def answer_rows(self, inputs: Tensors) -> dict[str, tf.Tensor]:
        """Returns `embedding` [B,D]; binary, [B,D/8]."""
        return self.finish_rows(self._vectors_of(inputs))

    def call_model(self, inputs: Tensors) -> dict[str, tf.Tensor]:
        """Returns `embedding` [G,D]."""
        vectors = text_vectors(self.encoder, inputs, self.pooling, self.layers, training=False)[:, : self.dimensions]
        return {"embedding": tf.math.l2_normalize(vectors, axis=-1, epsilon=1e-24) if self.normalize else vectors}

    def finish_rows(self, outputs: Tensors) -> dict[str, tf.Tensor]:
        """Returns the vectors in the requested number type."""
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
        """Returns the same for texts with a prompt in front, in the place of the default one."""
        return self.finish_rows(self._vectors_of_texts(inputs["text"], prompt))

    @staticmethod
    def describe(row: Mapping[str, Any], answer: Mapping[str, Any]) -> list[str]:
        """Returns the numbers."""
        return [
            "  "
            + " ".join(f"{number:.4f}" if isinstance(number, float) else str(number) for number in answer["embedding"])
        ]


def vector_settings(task: ServedTask) -> dict[str, Any]:
    """Returns how a run makes vectors of texts; {} for a task without embeddings."""
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

    A task of embeddings serves its own, with the run's pooling, also if `options.head` asks for them.

    Raises ValueError for an encoder alone if its task's answers are asked for, and as `ServedModel.make` does.
    """
    if options.head == "embeddings" and (task.head != "embeddings" or isinstance(model, BertEncoder)):
        return ServedEmbeddings.make(task, encoder_within(model), options, **vector_settings(task))
    if unserved := getattr(model, "unserved", ""):
        raise ValueError(f"--head: {unserved} is not served: expected --head=embeddings")
    if isinstance(model, BertEncoder):
        raise ValueError("--head: this checkpoint is an encoder without a head: expected --head=embeddings")
    return serving_of(task, task.config.task).make(task, model, options)


def _max_seq_length(task: ServedTask, options: ServingOptions) -> int:
    """Returns the longest row that is served: the longest of training, unless another is asked for."""
    most = task.config.model.longest_row
    trained = [phase.options.get("max_seq_length", task.options.max_seq_length) for phase in task.config.phases]
    length = options.max_seq_length or min(max(trained, default=task.options.max_seq_length), most)
    check_length(length, task.config.model, "--max_seq_length", least=3)
    return length
