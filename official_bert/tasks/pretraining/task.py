"""Pre-training on records: masked LM and next sentences (paper 3.1; 2018 `run_pretraining.py`), or another kind."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from official_bert.data.rows import Source
from official_bert.dotted_names import by_name
from official_bert.models.first_weights import begin_with_neighbours
from official_bert.objectives.objective import Objective
from official_bert.tasks.data import Data, DataFiles, Resolved, Steps
from official_bert.tasks.pretraining.data import RecordReader
from official_bert.tasks.pretraining.diffused_words import DiffusedWords
from official_bert.tasks.pretraining.held_out import warn_of_shared_records
from official_bert.tasks.pretraining.masked_words import HeldOutSize, MaskedWords, Masking
from official_bert.tasks.pretraining.next_token import NextTokens
from official_bert.tasks.pretraining.options import OF_ALL_PHASES, Options, with_defaults
from official_bert.tasks.task import TaskBase
from official_bert.training.recipe import Recipe

# By `options.objective`, and that of spans' boundaries; the kinds of BERT's relatives by their dotted names.
KINDS: Mapping[str, type[MaskedWords] | str] = {
    "masked_lm": MaskedWords,
    "masked_diffusion": DiffusedWords,
    "next_token": NextTokens,
    "replaced_tokens": "official_bert.tasks.pretraining.replaced_tokens:ReplacedWords",
    "spans": "official_bert.tasks.pretraining.spans:MaskedSpans",
}


class RecordData(Data):
    """Records, with masks or without, or packed rows."""

    def sources(self, files: DataFiles) -> dict[str, list[Source]]:
        """Returns {}: records are named by patterns, and may be too large to be read completely."""
        return {}

    def read(self, files: DataFiles, steps: Steps, model: keras.Model | None) -> Resolved:
        """Opens the records of `--input_file`, shuffled, and those of `--eval_input_file`, in their order."""
        training, reader = self.config.training, RecordReader(self.task, self.task.kind, self.task.masking_of)
        if steps.train and training.steps and training.epochs:
            raise ValueError(
                f"config.training: expected steps or epochs, got {training.steps} steps and {training.epochs:g} epochs "
                "(0 leaves out one of them)"
            )
        train = reader.source(files, files.train_file, training.batch_size, shuffle=True) if steps.train else None
        held_out = None
        if steps.evaluate and files.eval_file:
            source = reader.source(files, files.eval_file, training.eval_batch_size, shuffle=False)
            held_out = self.task.kind.held_out(source)
            warn_of_shared_records(train.paths if train else [], source.paths)
        return Resolved(task=self.task, model=model or self.task.build_model(), train=train, held_out=held_out)

    def batch_spec(self, batch_size: int) -> dict[str, tf.TensorSpec]:
        """Returns the features of masked records, or of packed rows."""
        return (
            self.task.kind.more_specs(batch_size)
            | {
                feature.name: tf.TensorSpec((batch_size, feature.length), tf.float32 if feature.is_float else tf.int32)
                for feature in self.task.kind.features()
            }
            | {"example_weights": tf.TensorSpec((batch_size,), tf.float32)}
        )


class Task(TaskBase):
    """A kind of pre-training on `create_pretraining_data`'s records."""

    Options = Options
    head = "fill_mask"
    serving = "official_bert.tasks.pretraining.served_together:BLANKS"
    data = property(RecordData)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.kind.check()
        for number, phase in enumerate(self.config.phases):
            for key in OF_ALL_PHASES:
                if (phase_value := phase.options.get(key, run_value := getattr(self.options, key))) != run_value:
                    raise ValueError(
                        f"config.phases[{number}].options.{key}: expected that of the run, {run_value} "
                        f"(phases train one model, with one head for sentences and one for words), got {phase_value}"
                    )

    @classmethod
    def read_options(cls, values: Mapping[str, Any]) -> Any:
        """Returns the options with the defaults of their objective."""
        return super().read_options(with_defaults(values))

    @functools.cached_property
    def kind(self) -> MaskedWords:
        """The kind of pre-training: its objective, model and features."""
        kind = KINDS["spans" if self.options.boundary_weight else self.options.objective]
        made: type[MaskedWords] = by_name(kind) if isinstance(kind, str) else kind
        return made(self.config, self.options)

    @property
    def objective(self) -> Objective:
        return self.kind.objective

    def build_model(self) -> keras.Model:
        return self.kind.build_model()

    def reads_pooler(self, model: keras.Model) -> bool:
        """Returns whether a head reads the pooler: with `pooler_norm` the word head does, else only the sentence
        head.
        """
        return self.config.model.pooler_norm or model.next_sentence is not None

    def draw_first_weights(self, model: keras.Model) -> None:
        """Initialises weights at random or, if configured, attention heads that attend to neighbouring tokens."""
        super().draw_first_weights(model)
        if self.options.first_weights == "neighbours":
            begin_with_neighbours(model, self.config.seed)

    def recipe(self, model: keras.Model, objective: Objective | None = None) -> Recipe:
        return dataclasses.replace(super().recipe(model, objective), flops=self.kind.flops)

    def make_masking(self) -> Masking:
        """Returns a function that masks batches of records without masks."""
        return self.kind.make_masking(lambda: self.tokenizer)

    def masking_of(self, held_out: HeldOutSize = None) -> Masking:
        """Returns `make_masking`; for held-out records, whose number is known, with rates that are spread evenly."""
        if held_out is None or type(self).make_masking is not Task.make_masking:  # a task of the user's own
            return self.make_masking()
        return self.kind.make_masking(lambda: self.tokenizer, held_out)
