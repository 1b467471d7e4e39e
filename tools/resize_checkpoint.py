"""Gives a checkpoint longer or shorter rows, or another vocabulary; writes an ordinary checkpoint with a note of its history.

    python tools/resize_checkpoint.py --init_checkpoint=roberta-base --output_dir=roberta_1024 --max_seq_length=1024
    python tools/resize_checkpoint.py --init_checkpoint=xlm-roberta-base --output_dir=xlmr_german --prune --input_file='german/*.txt'
    python tools/resize_checkpoint.py --init_checkpoint=roberta-base --output_dir=roberta_medicine --words_file=words.txt

`--prune` keeps the tokens of the texts in --input_file, in which every line has the same tokens as before; `--words_file` adds words, each
of which begins as the mean of the tokens that spelled it. Several may be given at once: first the vocabulary is pruned, then words are
added, then the rows are resized.
"""

from official_bert.command_line import from_flags, run_main

import dataclasses
import itertools
import json
import os
from collections.abc import Iterator

import numpy as np
from absl import flags

from official_bert.data.raw_text.documents import check_prepared_files
from official_bert.files import BadText, find_files, read_json, read_lines, require_new_folder, written_folder

FLAGS = flags.FLAGS
flags.DEFINE_string("init_checkpoint", None, "A checkpoint of any format, with its tokenizer beside it.", required=True)
flags.DEFINE_string("output_dir", None, "A new folder for the checkpoint.", required=True)
flags.DEFINE_integer("max_seq_length", None, "The most tokens of a row, special ones included.", lower_bound=1)
flags.DEFINE_enum("positions", "interpolate", ["interpolate", "repeat"], "How the table of positions becomes longer; a shorter one is cut.")
flags.DEFINE_bool("prune", False, "Keep only the tokens of --input_file.")
flags.DEFINE_string("input_file", "", "The text of --prune: files, folders, globs, with commas between.")
flags.DEFINE_bool("keep_characters", True, "With --prune: keep the tokens of a single character, by which other words can be spelled.")
flags.DEFINE_string("words_file", "", "Words to add, one per line.")
flags.DEFINE_enum("to", "", ["", "hugging_face", "ours"], "The format to write; by default that of the checkpoint, or hugging_face.")
flags.DEFINE_enum("on_bad_text", "error", ["error", "replace"], "How to treat text that is not UTF-8.")
HISTORY = "resized.json"
LINES_AT_ONCE = 4096


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The flags of these names."""

    init_checkpoint: str
    output_dir: str
    max_seq_length: int | None
    positions: str
    prune: bool
    input_file: str
    keep_characters: bool
    words_file: str
    to: str
    on_bad_text: BadText

    def check(self) -> None:
        """Raises ValueError if there is nothing to do, and for options that go unread."""
        if not (self.max_seq_length or self.prune or self.words_file):
            raise ValueError("expected one of --max_seq_length, --prune and --words_file")
        if self.prune != bool(self.input_file):
            raise ValueError(f"--prune: expected --input_file, whose tokens are kept, beside it and nowhere else, got {self.input_file!r}")
        if not self.keep_characters and not self.prune:
            raise ValueError("--nokeep_characters: expected --prune beside it")


def lines_of(settings: Settings) -> Iterator[list[str]]:
    """Gives the lines of the texts, some thousands at a time."""
    paths = find_files(settings.input_file, "--input_file")
    check_prepared_files(paths)
    lines = (line.strip() for path in paths for line in read_lines(path, on_bad_text=settings.on_bad_text))
    while part := list(itertools.islice(lines, LINES_AT_ONCE)):
        yield part


def with_tokenizer(stored, vocab=None, files=None):
    """The model with other files of its tokenizer, and that tokenizer."""
    from official_bert.text import loading
    from official_bert.text.tokenization import FullTokenizer
    if vocab is not None:
        stored = dataclasses.replace(stored, vocab=vocab)
    if files is not None:
        stored = dataclasses.replace(stored, tokenizer=files)
    if stored.tokenizer:
        return stored, loading.of_files(stored.tokenizer, stored.origin)
    from official_bert.models.interchange import casing
    entries = {token: index for index, token in enumerate(stored.vocab)}
    return stored, FullTokenizer(f"{stored.origin}: vocab.txt", casing.is_lower_case(stored) is not False, entries)


def prune(stored, tokenizer, settings: Settings):
    """Returns the model with the tokens of the texts alone, its tokenizer, and a note. Raises ValueError if lines change their tokens."""
    from official_bert.models.interchange import resizing
    from official_bert.text.subwords import resizing as tokenizers
    counts = np.zeros(tokenizer.size, np.int64)
    for lines in lines_of(settings):
        ids = [index for line in lines for index in tokenizer.tokenize_ids(line)]
        counts += np.bincount(ids, minlength=tokenizer.size)
    used = {tokenizer.inv_vocab[index] for index in np.flatnonzero(counts)}
    tokens = tokenizers.tokens_to_keep(tokenizer, used, settings.keep_characters)
    if stored.tokenizer:
        new, pruned = with_tokenizer(stored, files=tokenizers.pruned(tokenizer, tokens))
    else:
        new, pruned = with_tokenizer(stored, vocab=[token for token in stored.vocab if token in tokens])
    unknown = tokenizer.special_id("[UNK]")
    sources = [[tokenizer.vocab.get(pruned.inv_vocab.get(index, ""), unknown)] for index in range(pruned.size)]
    now = np.array([pruned.vocab.get(tokenizer.inv_vocab.get(index, ""), -1) for index in range(tokenizer.size)])
    for lines in lines_of(settings):
        for line in lines:
            if pruned.tokenize_ids(line) != now[tokenizer.tokenize_ids(line)].tolist():
                raise ValueError(f"{settings.input_file}: {line[:80]!r} would have other tokens; this tokenizer cannot be pruned")
    rows = len(stored.weights["embeddings/word_embeddings"])
    note = {"from": rows, "to": pruned.size, "tokens_of_the_text": int(counts.sum()), "characters_kept": settings.keep_characters}
    return resizing.with_entries(new, sources), pruned, note


def extend(stored, tokenizer, settings: Settings):
    """Returns the model with more words, its tokenizer, and a note."""
    from official_bert.models.interchange import resizing
    from official_bert.text import vocab
    from official_bert.text.subwords import resizing as tokenizers
    from official_bert.text.subwords.host import WORD_START
    words = list(dict.fromkeys(filter(None, (line.strip() for line in read_lines(settings.words_file, on_bad_text=settings.on_bad_text)))))
    for number, word in enumerate(words, 1):
        if len(word.split()) > 1:
            raise ValueError(f"{settings.words_file}:{number}: expected one word, got {word!r}")
    if stored.tokenizer:
        no_piece = {WORD_START, tokenizer.special["[UNK]"]}
        new = [word for word in words if word not in tokenizer.vocab  # words that are a token already stay as they are
               and len(set(tokenizer.tokenize_word(word)) - no_piece) != 1]
        changed, larger = with_tokenizer(stored, files=tokenizers.extended(tokenizer, new))
    else:
        words = [piece for word in words for piece in tokenizer.basic_tokenizer.tokenize(word)]
        entries, ids = vocab.extend_vocab(tokenizer.vocab, words)
        new = list(ids)
        changed, larger = with_tokenizer(stored, vocab=entries)
    rows = max(len(stored.weights["embeddings/word_embeddings"]), larger.size)
    sources = [[min(index, len(stored.weights["embeddings/word_embeddings"]) - 1)] for index in range(rows)]
    for word in new:
        sources[larger.vocab[word]] = tokenizer.convert_tokens_to_ids(tokenizer.tokenize_word(word)) or [tokenizer.special_id("[UNK]")]
    return resizing.with_entries(changed, sources), larger, {"words": len(new), "rows": rows}


def history_of(path: str) -> list:
    """Returns the notes beside a checkpoint that this command wrote."""
    note = os.path.join(path, HISTORY)
    return read_json(note) if os.path.isfile(note) else []


def main(_) -> None:
    """Reads, resizes, writes into a folder that appears when it is whole."""
    require_new_folder(FLAGS.output_dir, "--output_dir")
    settings = from_flags(Settings, FLAGS)
    settings.check()
    from official_bert.models.interchange import formats, resizing, stored_models
    stored = formats.read(settings.init_checkpoint)
    config, changes = stored_models.require_config(stored), {}
    if settings.prune or settings.words_file:
        if not stored.tokenizer and stored.vocab is None:
            raise ValueError(f"--init_checkpoint={settings.init_checkpoint}: no vocabulary found beside it")
        padding = config.first_position - 1
        stored, tokenizer = with_tokenizer(stored)
        if settings.prune:
            stored, tokenizer, changes["pruned"] = prune(stored, tokenizer, settings)
        if settings.words_file:
            stored, tokenizer, changes["extended"] = extend(stored, tokenizer, settings)
        if padding >= 0 and tokenizer.special_id("[PAD]") != padding:
            raise ValueError(f"{settings.init_checkpoint}: its positions begin at {padding + 1}, behind the id of padding, which would "
                             f"become {tokenizer.special_id('[PAD]')}: such a vocabulary cannot be pruned")
    if settings.max_seq_length:
        has_table = resizing.POSITIONS in stored.weights
        how = "no table" if not has_table else "cut" if settings.max_seq_length <= config.longest_row else settings.positions
        stored = resizing.resize_positions(stored, settings.max_seq_length, settings.positions)  # type: ignore[arg-type]
        changes["positions"] = {"from": config.longest_row, "to": settings.max_seq_length, "how": how}
    kind = formats.find_format(settings.init_checkpoint)[0]
    history = [*history_of(settings.init_checkpoint), {"of": os.path.basename(os.path.normpath(settings.init_checkpoint)), **changes}]
    with written_folder(settings.output_dir) as folder:
        formats.make_model(stored)
        formats.write(stored, settings.to or (kind if kind in ("ours", "hugging_face") else "hugging_face"), folder)
        with open(os.path.join(folder, HISTORY), "w", encoding="utf-8") as file:
            json.dump(history, file, indent=2)
            file.write("\n")
    for change, note in changes.items():
        print(f"{change}: {', '.join(f'{key} {value}' for key, value in note.items())}")
    print(f"{settings.output_dir}: {stored.origin}, resized")


if __name__ == "__main__":
    run_main(main)
