"""Answers raw text with a trained or exported model: filled blanks, labels, answers, entities.

    python -m official_bert.run_predict --task=fill_mask --model=bert-base-uncased 'The capital of [MASK] is Paris.'
    python -m official_bert.run_predict --task=squad --model=runs/squad --input_file=questions.jsonl --output_file=answers.jsonl

Texts come from arguments, the lines of --input_file, or standard input: JSON objects with the model's inputs, or columns
separated by tabs.
"""

import contextlib
import json
import sys
from typing import Any

from absl import flags
from tqdm import tqdm

from official_bert.command_line import run_main
from official_bert.files import exists, read_lines, written_whole

FLAGS = flags.FLAGS
flags.DEFINE_string("task", None, "The model's task (glue, squad, ner ...), or fill_mask.", required=True)
flags.DEFINE_string("model", None, "A training run's folder, a checkpoint of any format that --init_checkpoint takes, or an "
                    "exported model.", required=True)
flags.DEFINE_string("vocab_file", "", "The vocabulary of a checkpoint, if it is not beside it.")
flags.DEFINE_bool("do_lower_case", None, "Whether a checkpoint's text is lower-cased; by default as its files say.")
flags.DEFINE_bool("pairs", None, "A checkpoint's classifier reads two texts; not needed for a training run.")
flags.DEFINE_string("input_file", "", "Texts; - or nothing (and no arguments) reads standard input.")
flags.DEFINE_string("output_file", "", "Where to write the answers as JSON lines, instead of printing them.")
flags.DEFINE_integer("batch_size", 32, "Texts at once, of about equal length.", lower_bound=1)
flags.DEFINE_integer("top_k", None, "Words for each [MASK], of a training run's folder; 5 if it is not given. An exported model has its "
                     "own.", lower_bound=1)

TEXTS_AT_ONCE = 4096  # of a file: answers are written part by part


def main(arguments: list[str]) -> None:
    """Loads the model once and answers everything."""
    from official_bert.predictor import Predictor, class_that_gives, read_rows, served_classes
    from official_bert.serving.served_model import ServingOptions
    from official_bert.training.distribution import check_backend
    check_backend()
    wanted = served_classes(FLAGS.task, "--task")
    head: Any = "embeddings" if FLAGS.task == "embeddings" else ""
    options = ServingOptions(head=head, top_k=FLAGS.top_k, pairs=FLAGS.pairs)
    predictor = Predictor(FLAGS.model, options, FLAGS.vocab_file, FLAGS.do_lower_case)
    if wanted and not class_that_gives(predictor.outputs, wanted):
        raise ValueError(f"--model={FLAGS.model}: not a model for --task={FLAGS.task}; it gives {sorted(predictor.outputs)}")
    source = FLAGS.input_file or "-"
    if source != "-" and not exists(source):
        raise ValueError(f"--input_file={source}: no such file")
    lines = sys.stdin if source == "-" or arguments[1:] else read_lines(source)
    rows = list(read_rows(arguments[1:], source, predictor.inputs, lines))
    if not rows:
        raise ValueError("no text given: neither arguments, nor --input_file, nor standard input")
    with written_whole(FLAGS.output_file) if FLAGS.output_file else contextlib.nullcontext() as output:
        _answer(predictor, rows, output)


def _answer(predictor, rows, output) -> None:
    """Answers all rows, into a file or on the screen."""
    for start in tqdm(range(0, len(rows), TEXTS_AT_ONCE), desc="answering", disable=len(rows) <= TEXTS_AT_ONCE):
        part = rows[start:start + TEXTS_AT_ONCE]
        answers = predictor.answer(part, FLAGS.batch_size)
        for row, answer in zip(part, answers):
            if output:
                output.write(json.dumps({**row, **answer}, ensure_ascii=False) + "\n")
            else:
                print("\t".join(str(row[name]) for name in predictor.inputs), *predictor.describe(row, answer), sep="\n")


if __name__ == "__main__":
    run_main(main)
