"""The base of served models: tokenizer, packing, model and post-processing in one graph, for texts or rows of ids.

Each kind of answer has a class in the folder of its tasks; embeddings, which every encoder has, are in
`served_embeddings.py`. Both SavedModels of a served model call the same model and the same post-processing, so a text
gets the same answer as its ids. Names of inputs and outputs are those of the records and of docs/serving_models.md.

B texts, S tokens, D hidden size, R rows (a text longer than the model has several windows).
"""

import abc
import dataclasses
import functools
import math
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

import keras
import tensorflow as tf
from jaxtyping import Int, Shaped

from official_bert.config import check_length
from official_bert.fields import Constraint, Count, Natural, NonNegative, Probability, check_fields
from official_bert.models.encoder import encoder_within
from official_bert.models.vector_layers import Pooling
from official_bert.objectives.calibration import Calibration
from official_bert.serving.bounds import Claim, in_groups, in_range, require
from official_bert.serving.task_serving import ServedTask
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
    """Returns the specs of inputs with one string per text."""
    return {name: tf.TensorSpec([None], tf.string, name) for name in names}


NO_LIMIT = 2**30
Vectors = Literal["float32", "int8", "binary"]


def _read_by(readers: str, limit: bool = False) -> Any:
    """Returns a field for an option that only some served models read; None if not given.

    `limit`: it bounds the work per text.
    """
    return dataclasses.field(default=None, metadata={"readers": readers, "limit": limit})


IN_WINDOWS = "question answering, taggers and classifiers in windows"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServingOptions:
    """The user's options for a served model. The classes that read an option hold its default."""

    head: Literal["", "embeddings"] = ""
    """Kind of output; empty: the answers of the model's task."""
    max_seq_length: int = 0
    """Most tokens of a row; 0: as in training."""
    top_k: Count | None = _read_by("fill-mask models and sparse vectors")
    """Number of words for each blank, or for a text's sparse vector."""
    pooling: Pooling | None = _read_by("embeddings (--head=embeddings)")
    """Vector of a text: the row of [CLS], the mean or another pooling of all rows."""
    normalize: bool | None = _read_by("embeddings")
    """Vectors of length 1."""
    dimensions: Count | None = _read_by("embeddings")
    """Number of a vector's first numbers to return; by default all."""
    vectors: Vectors | None = _read_by("embeddings")
    """Type of a vector's numbers."""
    pretokenized: bool | None = _read_by("taggers")
    """Words are separated by spaces."""
    redact: bool | None = _read_by("taggers")
    """Return texts with the type and a number in place of each entity, [PER_1], instead of the entities."""
    pairs: bool | None = _read_by("classifiers")
    """Two texts per row; a run's configuration records it, a published checkpoint does not."""
    threshold: Probability | None = _read_by("classifiers of several labels")
    """Probability from which a label is given."""
    explanations: bool | None = _read_by("classifiers")
    """Add a signature `explain`, which returns how much each word adds to the answer."""
    max_positions: Count | None = _read_by("fill-mask models", limit=True)
    """Most blanks of a text."""
    passes: Count | None = _read_by("fill-mask models and models that write answers")
    """Passes in which the blanks of a text, or an answer, are filled together, the most confident first."""
    block_size: Count | None = _read_by("models that write answers")
    """Positions of an answer that are filled before the next ones begin."""
    temperature: NonNegative | None = _read_by("models that write answers")
    """Above 0, words are drawn at random instead of taking the likeliest."""
    seed: Natural | None = _read_by("models that write answers")
    """Seed of the words that are drawn."""
    beams: Count | None = _read_by("fill-mask models and models with a decoder")
    """Number of best fillings of all blanks of a text; for a decoder, number of kept beginnings of an answer."""
    max_choices: Count | None = _read_by("choice models", limit=True)
    """Most choices of a text."""
    max_windows: Count | None = _read_by(IN_WINDOWS, limit=True)
    """Most windows over a text."""
    tokens_at_once: Count | None = _read_by(IN_WINDOWS)
    """Most tokens of windows that go through the model at once."""
    no_answer: bool | None = _read_by("question answering")
    """Whether a question may have no answer; by default as trained."""
    null_score_diff_threshold: Annotated[float, Constraint("a number", lambda value: not math.isnan(value))] | None = (
        _read_by("question answering")
    )
    """No answer is returned if its score exceeds the best answer's by more than this; by default as trained."""
    signature: str | None = _read_by("exported models of several tasks")
    """Task of an exported model of several tasks."""
    bounded: bool = True
    """False: no limits; texts in files may be as long as memory allows."""

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
    SavedModel's outputs, `reads` the `ServingOptions` that its constructor takes, and `longest` the largest number of
    values that an input may have per row.

    `padded_text` and `padded_ids` name the outputs of each SavedModel whose second axis is padded to the longest row of
    a batch. Each is mapped to the output that counts a row's own values [B], or to the input of the same width.
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
        """Returns the served model of a task's trained model; `settings` are further arguments of the constructor.

        Raises ValueError for an option that is given but not read, for a vocabulary larger than the model's, and for a
        length beyond the model's positions.
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
        """Returns the outputs of the `ids` SavedModel for inputs of `ids_inputs`. Invalid inputs fail, by name, before
        any work is done.
        """
        return self.answer_rows(require(self.claims(inputs), dict(inputs)))

    @abc.abstractmethod
    def answer_rows(self, inputs: Tensors) -> dict[str, tf.Tensor]:
        """Returns the outputs of the `ids` SavedModel for inputs that have been checked or packed here."""

    def answer_text(self, inputs: Tensors) -> dict[str, tf.Tensor]:
        """Returns the outputs of the `text` SavedModel for inputs of `text_inputs`.

        In this class: the answers to rows of one text or two, and `truncated` [B].
        """
        features, truncated = self.pack(*(self.tokenizer.tokenize(inputs[name]) for name in self.text_inputs))
        return {**self.answer_rows(features), "truncated": truncated}

    def more_signatures(self) -> dict[str, Callable[[Tensors], dict[str, tf.Tensor]]]:
        """Returns further signatures of the `text` SavedModel by name.

        In this class: the answers to texts after each prompt.
        """
        return {name: functools.partial(self.answer_prompted, prompt=prompt) for name, prompt in self.prompts.items()}

    def answer_prompted(self, inputs: Tensors, prompt: str) -> dict[str, tf.Tensor]:
        """Returns the outputs of the `text` SavedModel for texts with a prompt in front."""
        return self.answer_text({**inputs, "text": tf.strings.join([prompt, inputs["text"]])})

    def claims(self, inputs: Tensors) -> list[Claim]:
        """Returns the conditions that inputs of `ids_inputs` must meet, for `bounds.require`."""
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
        """Returns the answer to a row of inputs as lines of text."""
        return [f"  {answer}"]

    @staticmethod
    def lacks_question(row: Mapping[str, Any], answer: Mapping[str, Any]) -> str:
        """Returns why a row of inputs asks no question, so that its answer is empty; "" if it asks one, as in most
        models.
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
        """Returns results as `run` does, but of any number of rows, in the order of the groups, and this order [R]."""
        lengths = real_lengths(rows["input_mask"], places)

        def run(group: tf.Tensor) -> Mapping[str, tf.Tensor]:
            longest = tf.reduce_max(tf.concat([tf.gather(lengths, group), [1]], 0))
            return compute({name: tf.gather(value, group)[:, :longest] for name, value in rows.items()}, group)

        return self.group(run, lengths, self.tokens_at_once, results)

    def run_model(self, rows: Rows, **more: tf.Tensor) -> Mapping[str, tf.Tensor]:
        """Returns the outputs of the model, or of `engine`, for rows [G,S] in one pass."""
        inputs = {**{name: rows[name] for name in ID_INPUTS}, **more}
        return self.engine(inputs) if self.engine else self.call_model(inputs)

    def call_model(self, inputs: Rows) -> dict[str, tf.Tensor]:
        """Returns the model's outputs, under the names of the answer, for inputs of `ids_inputs` in one plain pass."""
        return self.model(dict(inputs), training=False)

    def call_dense(self, inputs: Tensors) -> dict[str, tf.Tensor]:
        """Returns the same as `call_model` without loops, for other formats."""
        return self.call_model(inputs)

    def finish_rows(self, outputs: Tensors) -> dict[str, tf.Tensor]:
        """Returns the answer to rows of ids, given the model's outputs for them."""
        return dict(outputs)

    def pack(
        self, first: tf.RaggedTensor, second: tf.RaggedTensor | None = None, part: Part = "head"
    ) -> tuple[dict, tf.Tensor]:
        """Returns rows of ids, packed as in training and cut to the longest row that the model takes, and whether each
        was cut [B].
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


def _max_seq_length(task: ServedTask, options: ServingOptions) -> int:
    """Returns the longest row that is served: the option's value, or by default the longest of training."""
    most = task.config.model.longest_row
    trained = [phase.options.get("max_seq_length", task.options.max_seq_length) for phase in task.config.phases]
    length = options.max_seq_length or min(max(trained, default=task.options.max_seq_length), most)
    check_length(length, task.config.model, "--max_seq_length", least=3)
    return length
