"""Makes text and labelled sentences from a few words for `tools/run_ablations.py --scale=smoke`. They teach nothing.

python tools/make_ablation_text.py --output_dir=made
"""

from official_bert.command_line import run_main

import os
import random

from absl import flags

from official_bert.storage.files import written_whole

FLAGS = flags.FLAGS
flags.DEFINE_string("output_dir", None, "The folder for train.txt, held_out.txt and glue/SST-2.", required=True)
NAMES, VERBS = ("anna", "peter", "the old man", "a child"), ("sees", "finds", "likes", "forgets")
THINGS = {
    "0": ("a dark wood", "the cold rain", "a broken cup"),
    "1": ("the bright sun", "a warm house", "the sweet apples"),
}


def sentence(rng: random.Random, label: str) -> str:
    """Returns a sentence about dark things (label 0) or bright ones (label 1)."""
    return (
        f"{rng.choice(NAMES)} {rng.choice(VERBS)} {rng.choice(THINGS[label])} and {rng.choice(THINGS[label])} again ."
    )


def document(rng: random.Random) -> str:
    """Returns 6 to 12 sentences, one per line."""
    return "".join(f"{sentence(rng, rng.choice('01'))}\n" for _ in range(rng.randint(6, 12)))


def main(_: list[str]) -> None:
    """Writes the files. Every call writes the same text."""
    rng = random.Random(1)
    files = {
        f"{part}.txt": "\n".join(document(rng) for _ in range(count))
        for part, count in (("train", 60), ("held_out", 12))
    }
    for part, count in (("train", 120), ("dev", 40)):
        rows = [(sentence(rng, label), label) for label in rng.choices("01", k=count)]
        files[f"glue/SST-2/{part}.tsv"] = "sentence\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows)
    for name, text in files.items():
        with written_whole(os.path.join(FLAGS.output_dir, name)) as file:
            file.write(text)


if __name__ == "__main__":
    run_main(main)
