"""Answers raw text with a trained or exported model: filled blanks, labels, answers, entities.

    python -m official_bert.run_predict --task=fill_mask --model=bert-base-uncased 'The capital of [MASK] is Paris.'
    python -m official_bert.run_predict --model=runs/squad --input_file=questions.jsonl --output_file=answers.jsonl

Texts come from arguments, --input_file, or the lines of standard input. A file is CSV, TSV, JSON lines or Parquet with the columns of
training, or plain lines: JSON objects with the model's inputs, or columns separated by tabs. --keep_columns=id copies columns.
"""

from official_bert.command_line import run_main

import contextlib
import dataclasses
import json
import sys
from typing import Any

from absl import flags, logging
from tqdm import tqdm

from official_bert import command_line
from official_bert.files import shard_names, written_whole

FLAGS = flags.FLAGS
flags.DEFINE_string("task", "", "The model's task (glue, squad, ner ...), or fill_mask: another model is refused. By default what the "
                    "model gives. A task of yours, by its dotted name, is imported.")
flags.DEFINE_string("model", None, "A training run's folder, a checkpoint of any format that --init_checkpoint takes, or an "
                    "exported model.", required=True)
flags.DEFINE_string("vocab_file", "", "The vocabulary of a checkpoint, if it is not beside it.")
flags.DEFINE_bool("do_lower_case", None, "Whether a checkpoint's text is lower-cased; by default as its files say.")
flags.DEFINE_bool("pairs", None, "A checkpoint's classifier reads two texts; not needed for a training run.")
flags.DEFINE_string("input_file", "", "Texts; - or nothing (and no arguments) reads standard input.")
flags.DEFINE_string("encoding", "", "The encoding of --input_file, if it is a table of text, such as cp1252; by default as in training.")
flags.DEFINE_list("keep_columns", [], "Columns of --input_file that are copied into the answers, such as an id.")
flags.DEFINE_multi_string("set", [], "Options for reading --input_file, if training had others: --set options.text_column=review.")
flags.DEFINE_string("output_file", "", "Where to write the answers as JSON lines, instead of printing them.")
flags.DEFINE_string("output_format", "", "The form of --output_file, if training is to read it: csv, jsonl or parquet with the columns of "
                    "training; of entities also conll, brat, doccano, label_studio, prodigy, spacy ... By default that of --input_file, if "
                    "it is one of entities and both names end alike; else `outputs`, JSON lines with all outputs.")
flags.DEFINE_integer("batch_size", 32, "Texts at once, of about equal length.", lower_bound=1)
flags.DEFINE_integer("top_k", None, "Words for each [MASK], of a training run's folder; 5 if it is not given. An exported model has its "
                     "own.", lower_bound=1)
flags.DEFINE_bool("discard", False, "Answer anew what a stopped or finished command has answered into the files of --output_file.")
command_line.define_no_answer()

TEXTS_AT_ONCE = 4096  # of a file: answers are written part by part


def main(arguments: list[str]) -> None:
    """Loads the model once and answers everything."""
    from official_bert.data.long_work import preflight
    from official_bert.data.tabular.companions import files_read
    from official_bert.interface import many_answers, output_files
    from official_bert.interface.model_inputs import ModelInputs, read_entity_texts
    from official_bert.interface.predictor import Predictor, class_that_gives, served_classes
    from official_bert.serving.served_model import ServingOptions
    from official_bert.tasks.texts.glue_files import DATASETS, dataset_name
    from official_bert.training.distribution import check_backend
    check_backend()
    output_files.check_name(FLAGS.output_file)
    sharded = many_answers.is_many(FLAGS.input_file, FLAGS.output_file)
    if FLAGS.output_file and not sharded:
        outputs = output_files.files_of(FLAGS.output_file, FLAGS.output_format, FLAGS.input_file)
        preflight.check_outputs(outputs, files_read(FLAGS.input_file))
    formats = (*output_files.OUTPUT_FORMATS, "npy")
    if FLAGS.output_format and not (FLAGS.output_file and FLAGS.output_format in formats):
        raise ValueError(f"--output_format={FLAGS.output_format}: expected --output_file beside it, and one of {', '.join(formats)}")
    if sharded and not FLAGS.output_file:
        raise ValueError(f"--input_file={FLAGS.input_file}: expected --output_file beside several files, as in --output_file=answers@8")
    task = "glue" if dataset_name(FLAGS.task) else FLAGS.task
    task_classes = served_classes(task, "--task", ("embeddings", "fill_mask", *DATASETS)) if task else ()
    head: Any = "embeddings" if FLAGS.task == "embeddings" else ""
    published, dataset = _is_published(FLAGS.model), DATASETS.get(dataset_name(FLAGS.task) or "")
    two_texts = FLAGS.task == "reranking" or bool(dataset and len(dataset.texts) == 2)
    pairs = True if FLAGS.pairs is None and published and two_texts else FLAGS.pairs
    options = ServingOptions(head=head, top_k=FLAGS.top_k, pairs=pairs, no_answer=FLAGS.no_answer,
                             null_score_diff_threshold=FLAGS.null_score_diff_threshold)
    predictor = Predictor(FLAGS.model, options, FLAGS.vocab_file, FLAGS.do_lower_case)
    if task_classes and not class_that_gives(predictor.outputs, task_classes):
        raise ValueError(f"--model={FLAGS.model}: not a model for --task={FLAGS.task}; it gives {sorted(predictor.outputs)}")
    _check_dataset(predictor.config, FLAGS.task, FLAGS.model)
    if FLAGS.input_file and arguments[1:]:
        raise ValueError(f"--input_file={FLAGS.input_file}: expected no texts as arguments beside it, got {arguments[1]!r:.60}")
    overrides = [*FLAGS.set, *([f"options.encoding={FLAGS.encoding}"] if FLAGS.encoding else [])]
    one_of_two = bool(published and pairs is None and class_that_gives(predictor.outputs, served_classes("classification")))
    if wrong := sorted(set(FLAGS.keep_columns) & {*predictor.inputs, *predictor.outputs}):
        raise ValueError(f"--keep_columns={wrong[0]}: an answer has a {wrong[0]} of its own")
    reads_file = FLAGS.input_file not in ("", "-")
    if not reads_file and (FLAGS.keep_columns or FLAGS.set):
        raise ValueError(f"--{'keep_columns' if FLAGS.keep_columns else 'set'}: expected --input_file with names of columns")
    inputs = ModelInputs(predictor.inputs, may_read_pairs=one_of_two)
    if reads_file:
        inputs = ModelInputs.of_model(predictor.inputs, predictor.config, overrides, keep=tuple(FLAGS.keep_columns),
                                      is_tagger="entities" in predictor.outputs, may_read_pairs=one_of_two)
    if sharded or many_answers.are_vectors(FLAGS.output_format, predictor.outputs):
        many_answers.ManyAnswers(
            predictor=predictor, model_inputs=inputs, input_file=FLAGS.input_file, outputs=shard_names(FLAGS.output_file),
            form=many_answers.form_of(FLAGS.output_format, predictor.outputs, FLAGS.keep_columns),
            overrides=tuple(overrides), batch_size=FLAGS.batch_size, discard=FLAGS.discard,
            options=dataclasses.asdict(options) | {"batch_size": FLAGS.batch_size}).write()
        return
    if FLAGS.discard:
        raise ValueError("--discard: expected several files to answer, or an --output_file as in answers@8")
    if FLAGS.output_format:
        output_files.check_format(FLAGS.output_format, predictor.outputs)
    with_entities = reads_file and "entities" in predictor.outputs and not FLAGS.keep_columns
    encoding = FLAGS.encoding or (predictor.config.options.get("encoding", "") if predictor.config else "")
    in_form = FLAGS.output_format not in ("", output_files.ALL_OUTPUTS)
    texts = read_entity_texts(FLAGS.input_file, encoding, always=in_form) if with_entities else None
    form = _form(FLAGS.output_format, texts, FLAGS.input_file, FLAGS.output_file)
    if texts and (form or not texts.are_rows_of_text):
        rows = texts.rows
        if texts.left_out:
            logging.warning("%s: %d rows that people rejected or skipped are left out", FLAGS.input_file, texts.left_out)
    elif reads_file:
        rows = inputs.read_file(FLAGS.input_file)
    elif arguments[1:]:
        rows = list(inputs.read_lines(arguments[1:], "argument", skip_blank=False))
    else:
        rows = list(inputs.read_lines(sys.stdin, "-"))
    if not rows:
        raise ValueError("no text given: neither arguments, nor --input_file, nor standard input")
    if form:
        answers = [predictor.unpadded(answer) for answer in predictor.answer(rows, FLAGS.batch_size)]
        originals = texts.originals if texts and texts.form == form else ()
        output_files.write_answers(FLAGS.output_file, form, rows, answers, predictor.config, originals, encoding)
        return
    if FLAGS.output_file and (replaced := sorted({name for row in rows for name in row} & {*predictor.outputs})):
        logging.warning("%s of the rows: left out of --output_file, where an answer has its own", ", ".join(replaced))
    with written_whole(FLAGS.output_file) if FLAGS.output_file else contextlib.nullcontext() as output:
        _answer(predictor, rows, output, FLAGS.batch_size, FLAGS.keep_columns)


def _form(form: str, texts, input_file: str, output_file: str) -> str:
    """Returns the form of --output_file, "" for JSON lines with all outputs: what is `form`, or that of a file of entities that is read.

    Says so if it is not asked for.
    """
    from official_bert.interface import output_files
    if form or not (texts and output_file and output_files.ends_alike(input_file, output_file)):
        return "" if form == output_files.ALL_OUTPUTS else form
    print(f"{output_file}: in the form of --input_file, {texts.tool}; --output_format=outputs writes JSON lines with all outputs")
    return texts.form


def _is_published(model: str) -> bool:
    """Whether a model is a checkpoint that does not say whether its rows have two texts: neither a run, a search nor an exported model."""
    from official_bert.interface.portable_models import portable_folder
    from official_bert.serving.loading import exported_folder
    return exported_folder(model) is None and portable_folder(model) is None and not _is_run(model)


def _is_run(model: str) -> bool:
    """Whether a model is a training run, or a search of runs."""
    from official_bert.models.run_folder import RunFolder
    return RunFolder.holding(model) is not None or RunFolder(model).search is not None


def _check_dataset(config, task: str, model: str) -> None:
    """Raises ValueError if a task's name is that of a data set of GLUE, but the model was trained on another one, or on a user's own data.

    A published checkpoint does not say on which; `config` is that of the model, None if it is not known.
    """
    from official_bert.tasks.texts.glue_files import dataset_name
    dataset = dataset_name(task)
    if not (dataset and config):
        return
    trained = config.options.get("dataset") if config.task == "glue" else config.task
    if trained != dataset and (config.task == "glue" or _is_run(model)):
        raise ValueError(f"--task={task}: expected --task={trained}, for which {model} was trained")


def _answer(predictor, rows, output, batch_size: int, columns: list[str]) -> None:
    """Answers all rows, into a file or on the screen, there with some columns of each.

    Of a file, it says how many answers are empty because their texts ask for nothing; on the screen, each such answer says it.
    """
    from official_bert.interface.predictor import warn_of_empty
    empty: list[str] = []
    for start in tqdm(range(0, len(rows), TEXTS_AT_ONCE), desc="answering", disable=len(rows) <= TEXTS_AT_ONCE):
        part = rows[start:start + TEXTS_AT_ONCE]
        answers = predictor.answer(part, batch_size)
        for row, answer in zip(part, answers):
            if output:
                empty += filter(None, [predictor.lacks_question(row, answer)])
                output.write(json.dumps({**row, **predictor.unpadded(answer)}, ensure_ascii=False) + "\n")
            else:
                names = (*columns, *predictor.inputs)
                print("\t".join(str(row[name]) for name in names), *predictor.describe(row, answer), sep="\n")
    warn_of_empty(empty, len(rows))


if __name__ == "__main__":
    run_main(main)
