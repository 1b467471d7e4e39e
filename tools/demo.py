"""Runs the whole pipeline in one command: text -> vocabulary -> records -> pre-training -> SavedModel -> three filled
blanks.

Without `--corpus` the text is the prose of Python's own language reference, which every CPython contains. Each step is
a command of this project and is printed before it runs, so the demo is also a tour of the commands.
"""

from official_bert.command_line import require_here, run_main

import functools
import json
import math
import pathlib
import re
import shlex
import subprocess
import sys
import textwrap
import time
import unicodedata
from collections.abc import Callable

import numpy as np
from absl import flags

from official_bert.data.raw_text import scripts
from official_bert.data.record_files import records
from official_bert.run_folder import LOG_FILE
from official_bert.storage.files import absolute, exists, find_files, read_log
from official_bert.text import accents
from official_bert.text.loading import VOCAB_FILE
from official_bert.text.tokenization import FullTokenizer

FLAGS = flags.FLAGS
flags.DEFINE_string("corpus", "", "Text files (globs with commas) to use instead of Python's language reference.")
flags.DEFINE_string("output_dir", "demo", "The folder for all files of the demo.")
flags.DEFINE_string("config", "configs/pretrain/demo.yaml", "Model and training of the demo.")
flags.DEFINE_multi_string("set", [], "Overrides of the configuration, as in run_pretraining.")

ROOT = pathlib.Path(__file__).parent.parent
HELD_OUT_EVERY = 12  # one document in 12 is not used for training
FEWEST_DOCUMENTS = 4 * HELD_OUT_EVERY
CUT_AFTER = 40  # sentences: a corpus of fewer documents is cut into pieces of this length


def reference_documents() -> list[str]:
    """Returns the sections of Python's language reference as prose, without code, grammar and repeated paragraphs."""
    from pydoc_data.topics import topics

    seen: set[str] = set()
    documents = []
    for name in sorted(topics, key=lambda name: (-len(topics[name]), name)):
        for section in re.split(r"\n[^\n]+\n[*=\-~\"^]{4,}\n", "\n" + topics[name]):
            paragraphs = [
                " ".join(re.sub(r"^\s*[*\d.]+ ", "", block).split())
                for block in re.split(r"\n\s*\n", section)
                if not re.search(r"::=|>>>|\|$", block, re.MULTILINE)
            ]
            prose = [
                text
                for text in dict.fromkeys(paragraphs)
                if text not in seen and re.search(r"([a-z]{2,},? [a-z]+ ){2}.*[.:;)]$", text)
            ]
            seen.update(prose)
            if len(prose) >= 3:
                documents.append("\n".join(prose))
    return documents


def run(*command: str) -> None:
    """Runs a command of this project as a user would, and shows its output."""
    shown = " ".join(map(shlex.quote, command))
    print(
        " \\\n".join(
            textwrap.wrap(
                f"$ python {shown}", 118, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
            )
        ),
        flush=True,
    )
    finished = subprocess.run([sys.executable, *command], cwd=ROOT, check=False)
    if finished.returncode:
        raise SystemExit(finished.returncode)


def from_root(path: str) -> pathlib.Path:
    """Returns a path for the commands, which run in the project's folder: a relative one if it is inside and this is
    the working folder.
    """
    whole = pathlib.Path(path).absolute()
    return whole.relative_to(ROOT) if whole.is_relative_to(ROOT) and pathlib.Path.cwd() == ROOT else whole


def from_here(corpus: str) -> str:
    """Returns the user's paths and globs as absolute ones, because the commands run in this project's folder.

    Raises ValueError if they match no file.
    """
    find_files(corpus, "--corpus")
    return ",".join(absolute(pattern) for pattern in corpus.split(",") if pattern)


def split_documents(prepared: pathlib.Path, train: pathlib.Path, held_out: pathlib.Path) -> list[list[str]]:
    """Writes every twelfth document of `prepared` to `held_out` and the others to `train`; returns the former."""
    documents = [text.split("\n") for text in prepared.read_text(encoding="utf-8").strip().split("\n\n")]
    if len(documents) < FEWEST_DOCUMENTS:
        documents = [
            document[start : start + CUT_AFTER]
            for document in documents
            for start in range(0, len(document), CUT_AFTER)
        ]
    held_out_documents = documents[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]
    if not held_out_documents:
        raise ValueError(
            f"{prepared}: expected at least {HELD_OUT_EVERY * CUT_AFTER} sentences, got {sum(map(len, documents))}"
        )
    training = [document for index, document in enumerate(documents) if (index + 1) % HELD_OUT_EVERY]
    for path, part in ((train, training), (held_out, held_out_documents)):
        path.write_text("\n\n".join("\n".join(document) for document in part) + "\n", encoding="utf-8")
    print(f"{len(training)} documents to train on, {len(held_out_documents)} held out")
    return held_out_documents


def unigram_loss(train: str, held_out: str, vocab_size: int) -> float:
    """Returns the loss of the held-out records' masked words, in nats, if they are predicted by their frequency in
    `train`.
    """
    # starts at one, so that no held-out word has probability 0
    counts, held_out_counts = np.ones(vocab_size), np.zeros(vocab_size)
    for path, into in ((train, counts), (held_out, held_out_counts)):
        for instance in records.read_instances([path]):
            chosen = instance["masked_lm_ids"][instance["masked_lm_weights"] > 0]
            np.add.at(into, chosen, 1)
    return float(-(held_out_counts * np.log(counts / counts.sum())).sum() / held_out_counts.sum())


def last_held_out_loss(log: pathlib.Path) -> float:
    """Returns the masked-LM loss of the last evaluation in a run's JSON-lines log."""
    return [row["eval/mlm_loss"] for row in read_log(str(log)) if "eval/mlm_loss" in row][-1]


def make_blanks(documents: list[list[str]], tokenizer: FullTokenizer, count: int = 3) -> list[tuple[str, str]]:
    """Returns pairs (sentence with one [MASK], masked word), spread over the held-out documents.

    In text without spaces (Chinese, Thai), a token of letters is masked: a whole word if possible, else a piece of one.
    """
    sentences = [sentence for document in documents for sentence in document]
    has_spaces = scripts.script_of(" ".join(sentences[:100])) == "spaced"
    blanks = _spread([_blank_between_spaces], sentences, tokenizer, count) if has_spaces else []
    return blanks or _spread(
        [functools.partial(_blank_of_token, whole=whole) for whole in (True, False)], sentences, tokenizer, count
    )


def _spread(kinds: list[Callable], sentences: list[str], tokenizer: FullTokenizer, count: int) -> list[tuple[str, str]]:
    """Returns `count` blanks in different sentences, evenly spread; those of the first kind come first."""
    blanks: dict[str, tuple[str, str]] = {}
    for blank in kinds:
        more = [
            (sentence, chosen)
            for sentence in sentences
            if sentence not in blanks and (chosen := blank(sentence, tokenizer))
        ]
        left = count - len(blanks)
        blanks |= dict(more[:: max(1, len(more) // max(1, left))][:left])
    return list(blanks.values())


def _is_word(text: str) -> bool:
    """Returns whether a text consists of letters and vowel signs and begins with a letter."""
    return text[:1].isalpha() and all(unicodedata.category(char)[0] in "LM" for char in text)


def deletes_letters(text: pathlib.Path) -> bool:
    """Returns whether lower-casing loses much of a text, such as Vietnamese tones and Thai vowel signs."""
    return bool(accents.what_lower_casing_loses(accents.beginnings([str(text)])))


def _blank_between_spaces(sentence: str, tokenizer: FullTokenizer) -> tuple[str, str] | None:
    """Returns the sentence with its middle single-piece word masked; None if it has no such word."""
    words = sentence.split()
    whole = [
        index
        for index, word in enumerate(words[2:], 2)
        if _is_word(word) and len(word) > 3 and len(tokenizer.tokenize(word)) == 1
    ]
    if not (8 <= len(words) <= 20 and whole):
        return None
    middle = whole[len(whole) // 2]
    return " ".join([*words[:middle], "[MASK]", *words[middle + 1 :]]), words[middle]


def _blank_of_token(sentence: str, tokenizer: FullTokenizer, whole: bool) -> tuple[str, str] | None:
    """Returns the sentence with its middle token of letters masked (with `whole`, only a whole word); None if it has
    none.
    """
    tokens = tokenizer.tokenize_with_offsets(sentence)
    continued = [*(token.startswith("##") for token, _, _ in tokens[1:]), False]
    blanks = [
        (start, end)
        for (token, start, end), more in zip(tokens, continued)
        if _is_word(token.removeprefix("##")) and not (whole and (more or token.startswith("##")))
    ]
    if not 8 <= len(tokens) <= 60 or not blanks:
        return None
    start, end = blanks[len(blanks) // 2]
    return f"{sentence[:start].rstrip()} [MASK] {sentence[end:].lstrip()}", sentence[start:end]


def make_data(raw: str, output: pathlib.Path) -> tuple[list[list[str]], FullTokenizer]:
    """Makes vocabulary and records from `raw`, or from Python's language reference; returns held-out documents and
    tokenizer.
    """
    prepared, train, held_out, vocab = (
        output / name for name in ("corpus.txt", "train.txt", "held_out.txt", VOCAB_FILE)
    )
    if not raw:
        raw = str(output / "reference.jsonl")
        rows = (json.dumps({"text": text}) for text in reference_documents())
        pathlib.Path(raw).write_text("\n".join(rows) + "\n", encoding="utf-8")
    run("tools/prepare_corpus.py", f"--input_file={raw}", f"--output_file={prepared}")
    documents = split_documents(prepared, train, held_out)
    lower = not deletes_letters(train)
    casing = [] if lower else ["--do_lower_case=False"]
    run("tools/build_vocab.py", f"--input_file={train}", f"--output_file={vocab}", "--vocab_size=4000", *casing)
    for text, dupes in ((train, 20), (held_out, 4)):
        run(
            "tools/create_pretraining_data.py",
            f"--input_file={text}",
            f"--vocab_file={vocab}",
            f"--output_file={text.with_suffix('.tfrecord')}",
            "--max_seq_length=64",
            "--max_predictions_per_seq=10",
            f"--dupe_factor={dupes}",
            *casing,
        )
    return documents, FullTokenizer(str(vocab), lower)


def fill_blanks(blanks: list[tuple[str, str]], exported: pathlib.Path, texts: pathlib.Path) -> None:
    """Predicts and prints the masked word of each (text, word); writes the texts to a file."""
    texts.write_text("".join(f"{text}\n" for text, _ in blanks), encoding="utf-8")
    run("-m", "official_bert.run_predict", "--task=fill_mask", f"--model={exported}", f"--input_file={texts}")
    print("The masked words were: " + ", ".join(word for _, word in blanks))


def main(_: list[str]) -> None:
    """Runs every step and prints the held-out loss beside that of the unigram distribution."""
    begin, output = time.monotonic(), from_root(FLAGS.output_dir)
    require_here(FLAGS.output_dir, "output_dir", "the commands that this one calls share its files")
    # or a name of configs/
    config = absolute(FLAGS.config).removeprefix(f"{ROOT}/") if exists(FLAGS.config) else FLAGS.config
    output.mkdir(parents=True, exist_ok=True)
    documents, tokenizer = make_data(from_here(FLAGS.corpus) if FLAGS.corpus else "", output)
    train, held_out, model, exported, picture = map(
        output.joinpath, ("train.tfrecord", "held_out.tfrecord", "model", "exported", "loss.png")
    )
    unigram = unigram_loss(str(train), str(held_out), len(tokenizer.vocab))
    print(flush=True)
    run(
        "-m",
        "official_bert.run_pretraining",
        f"--config={config}",
        f"--vocab_file={output / VOCAB_FILE}",
        f"--input_file={train}",
        f"--eval_input_file={held_out}",
        f"--output_dir={model}",
        *[] if tokenizer.do_lower_case else ["--do_lower_case=False"],
        f"--set=model.vocab_size={len(tokenizer.vocab)}",
        *(f"--set={override}" for override in FLAGS.set),
    )
    print(flush=True)
    loss = last_held_out_loss(model / LOG_FILE)
    curve = ("--name=mlm_loss", f"--baseline={unigram:.4f}")
    run("tools/plot_run.py", str(model), f"--output_file={picture}", *curve)
    run("-m", "official_bert.run_export", f"--checkpoint={model}", f"--output={exported}")
    fill_blanks(make_blanks(documents, tokenizer), exported, output / "blanks.txt")
    print(
        f"\nHeld-out masked-LM loss: {loss:.2f} nats (perplexity {math.exp(loss):.0f}); by word frequencies alone: "
        f"{unigram:.2f} ({math.exp(unigram):.0f}). {(time.monotonic() - begin) / 60:.1f} minutes in all"
    )


if __name__ == "__main__":
    run_main(main)
