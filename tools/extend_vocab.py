"""Adds words of a domain to a vocabulary, and their rows to its checkpoint and configuration.

    python tools/extend_vocab.py --vocab_file=uncased/vocab.txt --bert_config_file=uncased/bert_config.json \\
        --init_checkpoint=uncased/bert_model.ckpt --words_file=words.txt --output_dir=uncased_medicine

Instead of a list of words, `--input_file=medicine/*.txt --num_words=500` takes the words that save the most tokens
there. A new word's embedding (and its bias in the masked-LM head) starts as the mean over the pieces that spelled it. With
`--vectors=glove.txt`, the embedding of a new word that has a vector there is that vector, mapped into the checkpoint's embeddings.

    python tools/extend_vocab.py --vocab_file=vocab.txt --config=model.yaml --vectors=glove.txt.gz --output_dir=begun

Without a checkpoint, this makes one to pre-train from (`--init_checkpoint=begun`): random weights, but the embeddings of all words that
have a vector begin as these vectors, projected to the model's width.
"""

from official_bert.command_line import from_flags, refuse_unread, run_main

import dataclasses
import json
import os
import re
import sys
from collections.abc import Mapping

import numpy as np
from absl import flags

from official_bert import config as configuration
from official_bert.data.raw_text.documents import check_prepared_files
from official_bert.files import BadText, find_files, read_json, read_lines, require_new_folder, written_folder
from official_bert.models.interchange import casing
from official_bert.models.run_folder import CONFIG_FILE, VOCAB_FILE, RunFolder
from official_bert.text import vocab_learning
from official_bert.text.tokenization import FullTokenizer
from official_bert.text.vocab import check_casing, check_size, extend_vocab, load_vocab
from official_bert.text.word_vectors import read_vectors

SPECIAL = re.compile(r"\[[^\]]+\]")  # [CLS], [unused1]: no words
FLAGS = flags.FLAGS
flags.DEFINE_string("vocab_file", None, "The vocabulary to extend.", required=True)
flags.DEFINE_bool("do_lower_case", None, "Whether the vocabulary is a lower-cased one; by default as --config says or, if it does not, as "
                  "the entries and the name of their folder do.")
flags.DEFINE_string("words_file", "", "New words, one per line.")
flags.DEFINE_string("input_file", "", "Instead of --words_file: text of the domain (files, folders, globs, with commas between).")
flags.DEFINE_integer("num_words", 500, "How many words to take from --input_file.", lower_bound=1)
flags.DEFINE_integer("min_frequency", 10, "Words that occur less often in --input_file are not taken.", lower_bound=1)
flags.DEFINE_bool("grow", True, "Add rows when the [unusedN] slots are full; otherwise that is an error.")
flags.DEFINE_string("bert_config_file", "", "bert_config.json of the model.")
flags.DEFINE_string("config", "", "Instead of --bert_config_file: YAML of the model.")
flags.DEFINE_string("init_checkpoint", "", "The model's checkpoint, of 2018 or ours.")
flags.DEFINE_string("vectors", "", "Word vectors as text (GloVe, word2vec, fastText; .gz too), from which the embeddings of new words "
                    "begin; without --init_checkpoint, those of all words of a new model.")
flags.DEFINE_integer("random_seed", 12345, "The seed of a new model's weights and of the projection of --vectors.")
flags.DEFINE_string("output_dir", None, "A new folder for all that is written.", required=True)
flags.DEFINE_enum("on_bad_text", "error", ["error", "replace"], "How to treat text that is not UTF-8.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The flags of these names; `do_lower_case` is decided once the vocabulary is read."""

    vocab_file: str
    do_lower_case: bool | None
    words_file: str
    input_file: str
    num_words: int
    min_frequency: int
    bert_config_file: str
    config: str
    init_checkpoint: str
    vectors: str
    random_seed: int
    output_dir: str
    on_bad_text: BadText

    @property
    def begins_model(self) -> bool:
        """Whether a model is made from word vectors alone."""
        return bool(self.vectors and not self.init_checkpoint)


def read_words(path: str, tokenizer: FullTokenizer, on_bad_text: BadText) -> list[str]:
    """Returns the words of a file as the tokenizer normalises them; raises ValueError for a line that it splits."""
    words = []
    for number, line in enumerate(read_lines(path, on_bad_text=on_bad_text), 1):
        split = tokenizer.basic_tokenizer.tokenize(line)
        if len(split) > 1:
            raise ValueError(f"{path}:{number}: expected one word, got {line.strip()!r}, which the tokenizer always "
                             f"splits into {' '.join(split)}")
        words += split
    return words


def is_lower_case(settings: Settings, vocab: Mapping[str, int]) -> bool:
    """Tells whether text is lower-cased: as --config or --do_lower_case say, or as the vocabulary and its folder's name do.

    The flag overrides what --config inherits. Raises ValueError if they contradict each other.
    """
    both = configuration.inherited_and_own(settings.config) if settings.config else ({}, {})
    inherited, own = ((values.get("tokenizer") or {}).get("do_lower_case") for values in both)
    lower_case = casing.agreed(own, settings.do_lower_case, settings.config)
    lower_case = inherited if lower_case is None else lower_case
    if lower_case is None:
        lower_case = casing.of_folder(settings.vocab_file, vocab) is not False
    check_casing(settings.vocab_file, vocab, lower_case)
    return lower_case


def wanted_words(settings: Settings, tokenizer: FullTokenizer) -> list[str]:
    """Returns the new words; those chosen from text have the best first."""
    if settings.begins_model and not (settings.words_file or settings.input_file):
        return []
    if bool(settings.words_file) == bool(settings.input_file):
        raise ValueError("expected one of --words_file and --input_file")
    if settings.words_file:
        return read_words(settings.words_file, tokenizer, settings.on_bad_text)
    paths = find_files(settings.input_file, "--input_file")
    check_prepared_files(paths)
    lines = (line for path in paths for line in read_lines(path, on_bad_text=settings.on_bad_text))
    counts = vocab_learning.count_words(lines, bool(settings.do_lower_case))
    return vocab_learning.choose_domain_words(counts, tokenizer, settings.num_words, settings.min_frequency)


def read_config(settings: Settings) -> configuration.ModelConfig | None:
    """Returns the configuration of the model; None without a configuration."""
    if settings.bert_config_file and settings.config:
        raise ValueError("expected one of --bert_config_file and --config, got both")
    if not settings.bert_config_file and not settings.config:
        return None
    return configuration.load_config(settings.config or None, bert_config_file=settings.bert_config_file or None).model


def write_config(settings: Settings, folder: str, size: int) -> None:
    """Returns the configuration with the new vocabulary, in its original format."""
    if settings.config:
        values = configuration.load_config(settings.config)
        tokenizer = dataclasses.replace(values.tokenizer, vocab_file=os.path.join(settings.output_dir, VOCAB_FILE),
                                        do_lower_case=bool(settings.do_lower_case))
        values = dataclasses.replace(values, tokenizer=tokenizer,
                                     model=dataclasses.replace(values.model, vocab_size=size))
        configuration.save_config(values, os.path.join(folder, CONFIG_FILE))
    elif settings.bert_config_file:
        old = read_json(settings.bert_config_file)
        with open(os.path.join(folder, "bert_config.json"), "w", encoding="utf-8") as file:
            json.dump(old | {"vocab_size": size}, file, indent=2)
            file.write("\n")


def is_word(entry: str) -> bool:
    """Tells whether an entry is a whole word."""
    return not entry.startswith("##") and not SPECIAL.fullmatch(entry)


def projection(model: configuration.ModelConfig, vectors: dict[int, np.ndarray]) -> str:
    """Says how the vectors of a new model became rows."""
    width = len(next(iter(vectors.values())))
    scaled = f"scaled to initializer_range {model.initializer_range:g}"
    if width == model.hidden_size:
        return scaled
    return f"projected from {width} to {model.hidden_size} numbers by a random orthonormal matrix, {scaled}"


def vectors_of(settings: Settings, entries: list[str]) -> dict[int, np.ndarray] | None:
    """Returns the vectors of the entries that are whole words, by id; None without --vectors."""
    if not settings.vectors:
        return None
    ids = {word: index for index, word in enumerate(entries) if is_word(word)}
    found = read_vectors(settings.vectors, ids.keys(), bool(settings.do_lower_case), settings.on_bad_text)
    return {ids[word]: vector for word, vector in found.items()}


def write_all(settings: Settings, folder: str, entries: list[str], model: configuration.ModelConfig | None,
              pieces: dict[int, list[int]], vectors: dict[int, np.ndarray] | None) -> tuple[int, float]:
    """Writes vocabulary, configuration and checkpoint; returns the new vocab_size, and how well the vectors could be mapped."""
    vocab_size = model.vocab_size if model else 0
    size, explained = max(len(entries), vocab_size), 0.0
    if model and vectors is not None and settings.begins_model:
        from official_bert.models.interchange import vocabulary_rows  # imports TensorFlow, which only a checkpoint needs
        vocabulary_rows.begin_with_vectors(dataclasses.replace(model, vocab_size=size), vectors, settings.random_seed, folder,
                                           "ours" if settings.config else "tf1")
    elif settings.init_checkpoint:
        from official_bert.models.interchange import vocabulary_rows
        explained = vocabulary_rows.extend_checkpoint(settings.init_checkpoint, folder, vocab_size, pieces, size, vectors)
    with open(os.path.join(folder, VOCAB_FILE), "w", encoding="utf-8", newline="\n") as file:
        file.write("\n".join(entries) + "\n")
    write_config(settings, folder, size)
    return size, explained


def main(_) -> None:
    """Chooses words, gives them ids and rows, and writes all into a folder that appears when it is complete."""
    require_new_folder(FLAGS.output_dir, "--output_dir")
    settings = from_flags(Settings, FLAGS)
    refuse_unread(FLAGS, [(["num_words", "min_frequency"], bool(FLAGS.input_file), "--input_file"),
                          (["random_seed"], settings.begins_model, "--vectors, and without --init_checkpoint")])
    model, lower_case = read_config(settings), is_lower_case(settings, load_vocab(FLAGS.vocab_file))
    settings, tokenizer = dataclasses.replace(settings, do_lower_case=lower_case), FullTokenizer(FLAGS.vocab_file, lower_case)
    if FLAGS.init_checkpoint and model is None:
        raise ValueError("--init_checkpoint needs --bert_config_file or --config, so that both stay together")
    if settings.begins_model and model is None:
        raise ValueError("--vectors needs --init_checkpoint, to whose embeddings the vectors are mapped, or the configuration of a model "
                         "to begin (--bert_config_file, --config)")
    if model is not None:
        check_size(FLAGS.vocab_file, len(tokenizer.vocab), model.vocab_size)
    if FLAGS.init_checkpoint:
        from official_bert.models.interchange import vocabulary_rows
        if FLAGS.bert_config_file and (run := RunFolder.holding(FLAGS.init_checkpoint)):
            raise ValueError(f"--bert_config_file={FLAGS.bert_config_file}: cannot hold all that the configuration of {run.path} says; "
                             f"give --config={run.file(CONFIG_FILE)} instead")
        vocabulary_rows.check_vocabulary(FLAGS.init_checkpoint, FLAGS.vocab_file)
    words = wanted_words(settings, tokenizer)
    entries, ids = extend_vocab(tokenizer.vocab, words, FLAGS.grow)
    pieces = {index: tokenizer.convert_tokens_to_ids(tokenizer.split_word(word)) for word, index in ids.items()}
    vectors = vectors_of(settings, entries)
    with written_folder(FLAGS.output_dir) as folder:
        size, explained = write_all(settings, folder, entries, model, pieces, vectors)
    unknown = [word for word in ids if tokenizer.split_word(word) == ["[UNK]"]]
    if unknown:
        print(f"warning: {len(unknown)} words could not be spelled before and begin as [UNK]: {' '.join(unknown[:5])}",
              file=sys.stderr)
    slots = sum(index < len(tokenizer.vocab) for index in ids.values())
    print(f"{FLAGS.output_dir}: {len(ids)} new words ({slots} in [unusedN] slots, {len(ids) - slots} rows added; "
          f"{len(set(words)) - len(ids)} were there already), vocab_size {size}")
    if vectors is not None and settings.begins_model:
        assert model is not None
        total = sum(is_word(entry) for entry in entries)
        print(f"{FLAGS.vectors}: vectors for {len(vectors)} of {total} words of the vocabulary ({len(vectors) / max(total, 1):.1%}); "
              f"{projection(model, vectors)}; all other weights are random (seed {FLAGS.random_seed})")
    elif vectors is not None:
        covered = sum(index in vectors for index in ids.values())
        print(f"{FLAGS.vectors}: vectors for {covered} of {len(ids)} new words ({covered / max(len(ids), 1):.1%}), fitted to "
              f"{len(vectors) - covered} words of the checkpoint; the map explains {explained:.1%} of their embeddings")


if __name__ == "__main__":
    run_main(main)
