"""Answers raw text with a trained or exported model: filled blanks, labels, answers, entities.

    python -m official_bert.run_predict --task=fill_mask --model=bert-base-uncased 'The capital of [MASK] is Paris.'
    python -m official_bert.run_predict --model=runs/squad --input_file=questions.jsonl --output_file=answers.jsonl

Texts come from arguments, --input_file, or the lines of standard input. A file is CSV, TSV, JSON lines or Parquet with
the columns of training, or plain lines: JSON objects with the model's inputs, or columns separated by tabs.
--keep_columns=id copies columns.
"""

from official_bert.command_line import run_main

import contextlib
import dataclasses
import functools
import json
import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from absl import flags, logging
from tqdm import tqdm

from official_bert import command_line
from official_bert.config import Config
from official_bert.storage.files import shard_names, written_whole

if TYPE_CHECKING:
    from official_bert.interface.model_inputs import EntityTexts, ModelInputs
    from official_bert.interface.predictor import Predictor
    from official_bert.serving.served_model import ServingOptions

FLAGS = flags.FLAGS
command_line.define_base("model")
flags.DEFINE_string(
    "task",
    "",
    "The model's task (glue, squad, ner ...), or fill_mask: another model is refused. By default the "
    "model's own task. A task of yours, by its dotted name, is imported.",
)
flags.DEFINE_string(
    "model",
    None,
    "A training run's folder, a checkpoint of any format that --init_checkpoint takes, or an exported model.",
    required=True,
)
flags.DEFINE_string("signature", None, "The task of an exported model of several (run_export --adapters).")
flags.DEFINE_string("vocab_file", "", "The vocabulary of a checkpoint, if it is not beside it.")
flags.DEFINE_bool("do_lower_case", None, "Whether a checkpoint's text is lower-cased; by default as its files say.")
flags.DEFINE_bool("pairs", None, "A checkpoint's classifier reads two texts; not needed for a training run.")
flags.DEFINE_bool(
    "redact", None, "Tagger: write texts with [PER_1] in place of each entity, and nothing of the texts themselves."
)
flags.DEFINE_string("input_file", "", "Texts; - or nothing (and no arguments) reads standard input.")
flags.DEFINE_string(
    "encoding", "", "The encoding of --input_file, if it is a table of text, such as cp1252; by default as in training."
)
flags.DEFINE_list("keep_columns", [], "Columns of --input_file that are copied into the answers, such as an id.")
flags.DEFINE_multi_string(
    "set", [], "Options for reading --input_file, if training had others: --set options.text_column=review."
)
flags.DEFINE_string("output_file", "", "Where to write the answers as JSON lines, instead of printing them.")
flags.DEFINE_string(
    "output_format",
    "",
    "The form of --output_file, if training is to read it: csv, jsonl or parquet with the columns of training; of "
    "entities also conll, brat, doccano, label_studio, prodigy, spacy ... By default that of --input_file, if it is "
    "one of entities and both names end alike; else `outputs`, JSON lines with all outputs.",
)
flags.DEFINE_integer("batch_size", 32, "Texts in a batch, of about equal length.", lower_bound=1)
flags.DEFINE_integer(
    "top_k",
    None,
    "Words for each [MASK], of a training run's folder; 5 if it is not given. An exported model has its own.",
    lower_bound=1,
)
flags.DEFINE_integer(
    "passes", None, "Fill all [MASK]s of a text together, the most confident first, in so many passes.", lower_bound=1
)
flags.DEFINE_integer(
    "block_size", None, "Places of a written answer that are full before the next ones begin.", lower_bound=1
)
flags.DEFINE_float("temperature", None, "Above 0, the words of a written answer are drawn at random.", lower_bound=0.0)
flags.DEFINE_integer("seed", None, "Of the words that --temperature draws.", lower_bound=0)
flags.DEFINE_integer(
    "beams",
    None,
    "Find so many best fillings of all [MASK]s of a text together; of a decoder, keep so many beginnings of an answer.",
    lower_bound=1,
)
flags.DEFINE_enum(
    "score",
    "",
    ["", "word_l2r", "token", "bound"],
    "How probable a masked LM finds each text, instead of an answer: word_l2r hides a token and the later ones of its "
    "word, token hides a token alone, bound is that of masked diffusion.",
)
flags.DEFINE_bool("explain", False, "Write what each word adds to the logit of an answer (docs/explain.md).")
flags.DEFINE_integer("explain_steps", 50, "Points of the path at which --explain takes gradients.", lower_bound=1)
flags.DEFINE_string("explain_of", "", "Explain a label, the tag of a word, or a word for a blank, not the answer.")
flags.DEFINE_bool(
    "discard", False, "Overwrite the files of --output_file instead of continuing a stopped or finished command."
)
command_line.define_no_answer()

TEXTS_AT_ONCE = 4096  # of a file: answers are written part by part


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prediction:
    """The flags of these names, and what they ask for."""

    task: str
    model: str
    vocab_file: str
    base: str
    do_lower_case: bool | None
    input_file: str
    encoding: str
    keep_columns: list[str]
    set: list[str]
    output_file: str
    output_format: str
    batch_size: int
    discard: bool
    score: str
    explain: bool
    explain_steps: int
    explain_of: str
    options: "ServingOptions"

    @property
    def overrides(self) -> list[str]:
        """Options for reading --input_file."""
        return [*self.set, *([f"options.encoding={self.encoding}"] if self.encoding else [])]

    @property
    def reads_file(self) -> bool:
        """Whether texts come from a file."""
        return self.input_file not in ("", "-")

    @property
    def is_sharded(self) -> bool:
        """Whether several files are read or written."""
        from official_bert.interface import many_answers

        return many_answers.is_many(self.input_file, self.output_file)

    def check(self, texts: Sequence[str]) -> None:
        """Raises ValueError for outputs that cannot be written, and for `texts`, the arguments, beside a file."""
        from official_bert.data.tabular.companions import files_read
        from official_bert.interface import output_files
        from official_bert.long_work import preflight

        output_files.check_name(self.output_file)
        if self.output_file and not self.is_sharded:
            outputs = output_files.files_of(self.output_file, self.output_format, self.input_file)
            preflight.check_outputs(outputs, files_read(self.input_file))
        formats = (*output_files.OUTPUT_FORMATS, "npy")
        if self.output_format and not (self.output_file and self.output_format in formats):
            raise ValueError(
                f"--output_format={self.output_format}: expected --output_file with it, and one of {', '.join(formats)}"
            )
        if self.is_sharded and not self.output_file:
            raise ValueError(
                f"--input_file={self.input_file}: expected --output_file beside several files, as in "
                f"--output_file=answers@8"
            )
        of_lines = [f"--score={self.score}"] * bool(self.score) + ["--explain"] * self.explain
        if of_lines[1:] or (of_lines and (self.is_sharded or self.output_format)):
            raise ValueError(
                f"{of_lines[0]}: expected one --input_file and one --output_file of JSON lines, without "
                f"{' and '.join(['--output_format', *of_lines[1:]])}"
            )
        if not self.reads_file and (self.keep_columns or self.set):
            raise ValueError(
                f"--{'keep_columns' if self.keep_columns else 'set'}: expected --input_file with names of columns"
            )
        if self.input_file and texts:
            raise ValueError(
                f"--input_file={self.input_file}: expected no texts as arguments with it, got {texts[0]!r:.60}"
            )

    @functools.cached_property
    def predictor(self) -> "Predictor":
        """The model. Raises ValueError if it is none of --task, or has outputs of the names of --keep_columns."""
        from official_bert.interface.predictor import Predictor

        predictor = Predictor(self.model, self.options, self.vocab_file, self.do_lower_case, self.base, self.task)
        _check_dataset(predictor.config, self.task, self.model)
        if wrong := sorted({*self.keep_columns} & {*predictor.inputs, *predictor.outputs}):
            raise ValueError(f"--keep_columns={wrong[0]}: an answer has a {wrong[0]} of its own")
        return predictor

    @property
    def may_be_pairs(self) -> bool:
        """Whether rows may turn out to have two texts: a published classifier does not say how many it reads."""
        from official_bert.interface.predictor import class_that_gives, served_classes

        is_classifier = class_that_gives(self.predictor.outputs, served_classes("classification"))
        return bool(self.options.pairs is None and is_classifier and _is_published(self.model))

    @functools.cached_property
    def model_inputs(self) -> "ModelInputs":
        """How rows give the model's inputs."""
        from official_bert.interface.model_inputs import ModelInputs

        inputs, outputs, config = self.predictor.inputs, self.predictor.outputs, self.predictor.config
        if not self.reads_file:
            return ModelInputs(inputs, may_read_pairs=self.may_be_pairs)
        return ModelInputs.of_model(
            inputs,
            config,
            self.overrides,
            keep=tuple(self.keep_columns),
            is_tagger="entities" in outputs,
            may_read_pairs=self.may_be_pairs,
        )

    def answer_shards(self) -> None:
        """Answers several files into several, or writes vectors."""
        from official_bert.interface import many_answers

        form = many_answers.form_of(self.output_format, self.predictor.outputs, self.keep_columns)
        if form in ("npy", "vectors_parquet"):
            self.predictor.require_float_vectors(f"--output_format={self.output_format}: expected float32 vectors")
        command_line.from_flags(
            many_answers.ManyAnswers,
            self,
            outputs=shard_names(self.output_file),
            form=form,
            options=dataclasses.asdict(self.options) | {"batch_size": self.batch_size},
        ).write()

    def answer(self, arguments: Sequence[str]) -> None:
        """Answers one file, the arguments, or standard input."""
        from official_bert.interface import output_files
        from official_bert.interface.model_inputs import read_entity_texts

        predictor = self.predictor
        if self.discard:
            raise ValueError("--discard: expected several files to answer, or an --output_file as in answers@8")
        if self.output_format:
            output_files.check_format(self.output_format, predictor.outputs)
        encoding = self.encoding or (predictor.config.options.get("encoding", "") if predictor.config else "")
        texts = None
        if self.reads_file and "entities" in predictor.outputs and not self.keep_columns:
            texts = read_entity_texts(
                self.input_file, encoding, always=self.output_format not in ("", output_files.ALL_OUTPUTS)
            )
        form = _form(
            self.output_format or output_files.ALL_OUTPUTS * self.explain, texts, self.input_file, self.output_file
        )
        if not (texts and (form or not texts.are_rows_of_text)):
            rows = self.read_rows(arguments)
        else:
            rows = texts.rows
            if texts.left_out:
                logging.warning(
                    "%s: %d rows that annotators rejected or skipped are ignored", self.input_file, texts.left_out
                )
        if not rows:
            raise ValueError("no text given: neither arguments, nor --input_file, nor standard input")
        if self.score:
            self.write_scores(rows)
        elif form:
            answers = [predictor.unpadded(answer) for answer in predictor.answer(rows, self.batch_size)]
            originals = texts.originals if texts and texts.form == form else ()
            output_files.write_answers(self.output_file, form, rows, answers, predictor.config, originals, encoding)
        else:
            self.write_outputs(rows)

    def write_scores(self, rows: Sequence[dict]) -> None:
        """Scores all rows, into a file or on the screen, and prints a summary."""
        total, tokens = 0.0, 0
        with written_whole(self.output_file) if self.output_file else contextlib.nullcontext() as output:
            for start in tqdm(range(0, len(rows), TEXTS_AT_ONCE), desc="scoring", disable=len(rows) <= TEXTS_AT_ONCE):
                part = rows[start : start + TEXTS_AT_ONCE]
                for row, answer in zip(part, self.predictor.score(part, self.score, self.batch_size, start + 1)):
                    total, tokens = total + answer["score"], tokens + len(answer["tokens"])
                    if output:
                        output.write(json.dumps({**row, **answer}, ensure_ascii=False) + "\n")
                    else:
                        words = "  ".join(map("{} {:.3f}".format, answer["words"], answer["word_scores"]))
                        print(row["text"], f"  {answer['score']:.4f}   {words}", sep="\n")
        mean = total / max(tokens, 1)
        print(
            f"{len(rows)} texts, {tokens} tokens: sum {total:.4f}, mean {mean:.4f}, "
            f"pseudo-perplexity {math.exp(min(-mean, 700.0)):.4f}"
        )

    def read_rows(self, arguments: Sequence[str]) -> list:
        """Returns the rows of a file, those that the arguments are, or those on standard input."""
        if self.reads_file:
            return self.model_inputs.read_file(self.input_file)
        if arguments:
            return list(self.model_inputs.read_lines(arguments, "argument", skip_blank=False))
        return list(self.model_inputs.read_lines(sys.stdin, "-"))

    def write_outputs(self, rows: Sequence[dict]) -> None:
        """Answers all rows, with all outputs into a file, or on the screen with some columns of each.

        Of a file, it says how many answers are empty because their texts ask for nothing; on the screen, each such
        answer says it.
        """
        from official_bert.interface.many_answers import shown
        from official_bert.interface.predictor import warn_of_empty
        from official_bert.serving.explanations import in_words

        predictor, empty, notes = self.predictor, list[str](), list[str]()
        if self.output_file and (replaced := sorted({name for row in rows for name in row} & {*predictor.outputs})):
            logging.warning(
                "%s of the rows: not copied to --output_file, where an answer has its own", ", ".join(replaced)
            )
        with written_whole(self.output_file) if self.output_file else contextlib.nullcontext() as output:
            for start in tqdm(range(0, len(rows), TEXTS_AT_ONCE), desc="answering", disable=len(rows) <= TEXTS_AT_ONCE):
                part = rows[start : start + TEXTS_AT_ONCE]
                answers = predictor.answer(part, self.batch_size)
                if self.explain:
                    how = self.explain_steps, self.explain_of, start + 1
                    explained = predictor.explainer.explain_all(part, answers, *how)
                    answers = [{**answer, "explanation": words} for answer, words in zip(answers, explained)]
                    notes += [note for words in explained for note in words["notes"]]
                for row, answer in zip(part, answers):
                    if output:
                        empty += filter(None, [predictor.lacks_question(row, answer)])
                        written = {**shown(row, predictor), **predictor.unpadded(answer)}
                        output.write(json.dumps(written, ensure_ascii=False) + "\n")
                    else:
                        cells = shown({name: row[name] for name in (*self.keep_columns, *predictor.inputs)}, predictor)
                        words = [in_words(answer["explanation"])] if self.explain else []
                        line = ["\t".join(map(str, cells.values()))] if cells else []
                        print(*line, *predictor.describe(row, answer), *words, sep="\n")
        warn_of_empty(empty, len(rows))
        if notes:
            logging.warning("%d notes on the explanations of %d texts: %s", len(notes), len(rows), notes[0])


def main(arguments: list[str]) -> None:
    """Loads the model once and answers everything."""
    from official_bert.interface import many_answers
    from official_bert.serving.served_model import ServingOptions
    from official_bert.training.machines.distribution import check_backend

    check_backend()
    command_line.refuse_unread(FLAGS, [(["explain_steps", "explain_of"], FLAGS.explain, "--explain")])
    pairs = _reads_pairs(FLAGS.task, FLAGS.model) if FLAGS.pairs is None else FLAGS.pairs
    head = "embeddings" if FLAGS.task == "embeddings" else ""
    options = command_line.from_flags(ServingOptions, FLAGS, head=head, pairs=pairs)
    job = command_line.from_flags(Prediction, FLAGS, options=options)
    job.check(arguments[1:])
    if job.is_sharded or many_answers.are_vectors(job.output_format, job.predictor.outputs):
        job.answer_shards()
    else:
        job.answer(arguments[1:])


def _reads_pairs(task: str, model: str) -> bool | None:
    """Whether a published classifier reads two texts, as --task says; None for other models, which know it, and other
    tasks.
    """
    from official_bert.tasks.loading import dataset_name
    from official_bert.tasks.texts.glue_files import DATASETS

    dataset = DATASETS.get(dataset_name(task) or "")
    reads_two = task == "reranking" or (dataset and len(dataset.texts) == 2)
    return True if reads_two and _is_published(model) else None


def _form(form: str, texts: "EntityTexts | None", input_file: str, output_file: str) -> str:
    """Returns the form of --output_file, "" for JSON lines with all outputs: what is `form`, or that of a file of
    entities that is read.

    Says so if it is not asked for.
    """
    from official_bert.interface import output_files

    if form or not (texts and output_file and output_files.ends_alike(input_file, output_file)):
        return "" if form == output_files.ALL_OUTPUTS else form
    print(
        f"{output_file}: in the form of --input_file, {texts.tool}; --output_format=outputs writes JSON lines with "
        f"all outputs"
    )
    return texts.form


def _is_published(model: str) -> bool:
    """Whether a model is a checkpoint that does not say whether its rows have two texts: neither a run, a search nor an
    exported model.
    """
    from official_bert.interface.predictor import portable_folder
    from official_bert.serving.loading import exported_folder

    return exported_folder(model) is None and portable_folder(model) is None and not _is_run(model)


def _is_run(model: str) -> bool:
    """Whether a model is a training run, or a search of runs."""
    from official_bert.run_folder import RunFolder

    return RunFolder.holding(model) is not None or RunFolder(model).search is not None


def _check_dataset(config: Config | None, task: str, model: str) -> None:
    """Raises ValueError if a task's name is that of a data set of GLUE, but the model was trained on another one, or on
    a user's own data.

    A published checkpoint does not say on which; `config` is that of the model, None if it is not known.
    """
    from official_bert.tasks.loading import dataset_name

    dataset = dataset_name(task)
    if not (dataset and config):
        return
    trained = config.options.get("dataset") if config.task == "glue" else config.task
    if trained != dataset and (config.task == "glue" or _is_run(model)):
        raise ValueError(f"--task={task}: expected --task={trained}, for which {model} was trained")


if __name__ == "__main__":
    run_main(main)
