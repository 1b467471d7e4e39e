"""Measures redaction: trains a tagger on WNUT 17, redacts the test texts, checks every replacement, and counts the true
names that are left.

    make minilm
    python benchmarks/redaction.py --data=wnut17 --init_checkpoint=MODEL_FOLDER

The words of a sentence are joined by spaces. A true name is left if one of its letters stands outside all replacements.
"""

import collections
import json
import os
import pathlib

from absl import app, flags

ROOT = pathlib.Path(__file__).parent.parent
FLAGS = flags.FLAGS
flags.DEFINE_string("data", None, "The folder of WNUT 17.", required=True)
flags.DEFINE_string("init_checkpoint", None, "The weights to begin with.", required=True)
flags.DEFINE_float("epochs", 5.0, "Passes over the training sentences.")
flags.DEFINE_integer("seed", 1, "The seed.")
flags.DEFINE_string("results_file", str(ROOT / "docs/results/redaction.json"), "Where to write the figures.")
flags.DEFINE_string("picture", str(ROOT / "docs/images/redaction.png"), "Where to draw them.")
flags.DEFINE_string("run", "build/redaction", "The folder of the run, which is trained if it is new.")


def read_names(path: str) -> list[tuple[str, list[tuple[int, int, str]]]]:
    """The text of each sentence, and (start, end, type) of its names, by a reader of its own."""
    sentences = []
    for block in pathlib.Path(path).read_text(encoding="utf-8").replace("\t\n", "\n").split("\n\n"):
        rows = [line.rsplit("\t", 1) for line in block.splitlines() if "\t" in line]
        text, names = "", []
        for word, tag in rows:
            start = len(text) + bool(text)
            text = f"{text} {word}" if text else word
            if tag.startswith("B-"):
                names.append((start, len(text), tag[2:]))
            elif tag.startswith("I-") and names:
                names[-1] = (names[-1][0], len(text), names[-1][2])
        if rows:
            sentences.append((text, names))
    return sentences


def check(text: str, answer: dict) -> None:
    """Checks that replacements are exactly where the answer says, that all else is the text as it was, and that each
    name has one replacement and each replacement one name.
    """
    rebuilt, last, replacements, names = [], 0, {}, {}
    columns = (answer[name] for name in ("starts", "ends", "types", "replacements"))
    for start, end, kind, replacement in zip(*columns, strict=True):
        assert last <= start < end <= len(text) and replacement not in text and replacement.startswith(f"[{kind}_")
        name = kind, text[start:end]
        assert replacements.setdefault(name, replacement) == replacement and names.setdefault(replacement, name) == name
        rebuilt += [text[last:start], replacement]
        last = end
    assert "".join([*rebuilt, text[last:]]) == answer["redacted"]


def main(_) -> None:
    """Trains if there is no run, redacts, checks and counts."""
    import official_bert

    if not os.path.exists(os.path.join(FLAGS.run, "eval_results.txt")):
        official_bert.fine_tune(
            "ner",
            train=os.path.join(FLAGS.data, "wnut17train.conll"),
            eval=os.path.join(FLAGS.data, "emerging.dev.conll"),
            init_checkpoint=FLAGS.init_checkpoint,
            output_dir=FLAGS.run,
            max_seq_length=128,
            batch_size=16,
            epochs=FLAGS.epochs,
            learning_rate=1e-4,
            seed=FLAGS.seed,
        )
    test = os.path.join(FLAGS.data, "emerging.test.annotated")
    scores = official_bert.Predictor(FLAGS.run).evaluate(test)
    sentences = read_names(test)
    answers = official_bert.Predictor(FLAGS.run, redact=True, pretokenized=True)([text for text, _ in sentences])
    names, left, whole, replaced = collections.Counter(), collections.Counter(), 0, 0
    for (text, gold), answer in zip(sentences, answers):
        check(text, answer)
        covered = {place for span in zip(answer["starts"], answer["ends"]) for place in range(*span)}
        replaced += len(answer["starts"])
        for start, end, kind in gold:
            outside = [place for place in range(start, end) if place not in covered and not text[place].isspace()]
            names[kind] += 1
            left[kind] += bool(outside)
            whole += len(outside) == sum(not character.isspace() for character in text[start:end])
    result = {
        "texts": len(sentences),
        "replacements": replaced,
        "names": sum(names.values()),
        "left": sum(left.values()),
        "left_whole": whole,
        "left_by_type": {kind: [left[kind], names[kind]] for kind in sorted(names)},
        "scores": {name: scores[name] for name in ("precision", "recall", "f1")},
        "epochs": FLAGS.epochs,
    }
    pathlib.Path(FLAGS.results_file).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    draw(result)
    print(json.dumps(result, indent=1))


def draw(result: dict) -> None:
    """Draws the share of the names of each type that are left."""
    import matplotlib.pyplot as plt

    shares = {kind: left / count for kind, (left, count) in result["left_by_type"].items()}
    figure, axes = plt.subplots(figsize=(7, 3.2))
    axes.barh(list(shares), list(shares.values()))
    axes.set(xlim=(0, 1), xlabel="share of true names of which letters are left", title="WNUT 17, test texts, redacted")
    figure.tight_layout()
    figure.savefig(FLAGS.picture, dpi=110)


if __name__ == "__main__":
    app.run(main)
