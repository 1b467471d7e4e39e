r"""Compares the answers of exports of one classifier in several precisions on labelled texts.

    python benchmarks/export_accuracy.py --data=MRPC/dev.tsv --texts="#1 String,#2 String" --label=Quality \
        models/float32 models/bfloat16

The file is a TSV with a header; the first model is the one that the others are compared with.
"""

import csv

import numpy as np
from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_string("data", None, "A TSV with a header.", required=True)
flags.DEFINE_list("texts", ["sentence"], "The columns of the text, or of both texts.")
flags.DEFINE_string("label", "label", "The column of the label.")
flags.DEFINE_integer("batch_size", 32, "Texts of a request.")


def read_rows() -> tuple[list[dict[str, str]], list[str]]:
    """Returns the inputs of the text signature, and the labels."""
    with open(FLAGS.data, encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    names = ("text", "text_pair")[: len(FLAGS.texts)]
    return [{name: row[column] for name, column in zip(names, FLAGS.texts)} for row in rows], [
        row[FLAGS.label] for row in rows
    ]


def answers_of(folder: str, rows: list[dict[str, str]]) -> tuple[np.ndarray, np.ndarray]:
    """Returns a model's labels and logits for all rows."""
    from official_bert.serving.loading import load_exported

    model = load_exported(folder)
    parts = [
        model(**{name: [row[name] for row in rows[start : start + FLAGS.batch_size]] for name in rows[0]})
        for start in range(0, len(rows), FLAGS.batch_size)
    ]
    return np.concatenate([part["label"] for part in parts]).astype(str), np.concatenate(
        [part["logits"] for part in parts]
    )


def main(argv) -> None:
    """Prints a line about each model."""
    rows, labels = read_rows()
    first = None
    for folder in argv[1:]:
        labels_given, logits = answers_of(folder, rows)
        first = (labels_given, logits) if first is None else first
        right = labels_given == np.array(labels)
        print(
            f"{folder}: accuracy {right.mean():.4f} ({right.sum()} of {len(rows)}); other labels than the first "
            f"model's: {(labels_given != first[0]).sum()}; logits differ by {np.abs(logits - first[1]).mean():.4f} on "
            f"average, at most {np.abs(logits - first[1]).max():.4f}, of a standard deviation of {first[1].std():.3f}"
        )


if __name__ == "__main__":
    app.run(main)
