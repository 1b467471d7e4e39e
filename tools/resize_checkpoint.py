r"""Gives a checkpoint longer or shorter rows, or another vocabulary; writes an ordinary checkpoint with a note of its
history.

    python tools/resize_checkpoint.py --init_checkpoint=roberta-base --output_dir=roberta_1024 --max_seq_length=1024
    python tools/resize_checkpoint.py --init_checkpoint=xlm-roberta-base --output_dir=xlmr_german --prune \
        --input_file='german/*.txt'
    python tools/resize_checkpoint.py --init_checkpoint=uncased_L-12_H-768_A-12 --output_dir=medicine \
        --input_file='med/*' --num_words=500
    python tools/resize_checkpoint.py --vocab_file=vocab.txt --config=model.yaml --vectors=glove.txt.gz \
        --output_dir=begun

`--prune` keeps the tokens of the texts in --input_file; every line of these has the same tokens as before.
`--words_file` adds words, `--num_words` those that save the most tokens in --input_file; each begins as the mean of the
tokens that spelled it or, with `--vectors`, as its word vector, mapped to the checkpoint's embeddings. With several
options, first the vocabulary is pruned, then words are added, then the rows are resized.

Without a checkpoint, only a vocabulary is extended. With a configuration and --vectors, a new model is made. Its
weights are random, but the embeddings of words that have a vector begin as these vectors, projected to its width.
"""

from official_bert.command_line import from_flags, refuse_unread, run_main

import dataclasses
import itertools
import os
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from absl import flags

from official_bert import config as configuration
from official_bert.data.raw_text.documents import check_prepared_files
from official_bert.run_folder import CONFIG_FILE, RunFolder
from official_bert.storage.files import (
    BadText,
    find_files,
    read_json,
    read_lines,
    require_new_folder,
    write_json,
    written_folder,
)
from official_bert.text.loading import VOCAB_FILE
from official_bert.text.vocab import check_casing, check_size, extend_vocab, load_vocab

if TYPE_CHECKING:
    from official_bert.models.interchange.stored_models import StoredModel
    from official_bert.text.tokenizer import Tokenizer

FLAGS = flags.FLAGS
flags.DEFINE_string("init_checkpoint", "", "A checkpoint of any format, with its tokenizer beside it.")
flags.DEFINE_string("output_dir", None, "A new folder for all output files.", required=True)
flags.DEFINE_string("vocab_file", "", "The vocabulary, if there is no checkpoint or none beside it.")
flags.DEFINE_bool(
    "do_lower_case",
    None,
    "Whether a WordPiece vocabulary is lower-cased; by default as the files, the entries and the "
    "name of their folder say.",
)
flags.DEFINE_string("bert_config_file", "", "bert_config.json of the model, if it is not beside the checkpoint.")
flags.DEFINE_string("config", "", "YAML of the model, without a checkpoint, instead of --bert_config_file.")
flags.DEFINE_integer("max_seq_length", None, "Most tokens of a row, with special tokens.", lower_bound=1)
flags.DEFINE_enum(
    "positions",
    "interpolate",
    ["interpolate", "repeat"],
    "How the table of positions is made longer; to make it shorter, it is cut.",
)
flags.DEFINE_bool("prune", False, "Keep only the tokens that occur in --input_file.")
flags.DEFINE_string("input_file", "", "The text of --prune and --num_words: comma-separated files, folders and globs.")
flags.DEFINE_bool(
    "keep_characters", True, "With --prune: keep tokens of a single character, so that other words can be spelled."
)
flags.DEFINE_string("words_file", "", "Words to add, one per line.")
flags.DEFINE_integer("num_words", 0, "Words of --input_file to add to a WordPiece vocabulary.", lower_bound=0)
flags.DEFINE_integer("min_frequency", 10, "With --num_words: rarer words are not added.", lower_bound=1)
flags.DEFINE_bool("grow", True, "Add rows when the [unusedN] slots are full; otherwise that is an error.")
flags.DEFINE_string(
    "vectors",
    "",
    "Word vectors as text (GloVe, word2vec, fastText; .gz too), which initialize the embeddings of new "
    "words; without --init_checkpoint, those of all words of a new model.",
)
flags.DEFINE_integer("random_seed", 12345, "The seed of a new model's weights and of the projection of --vectors.")
flags.DEFINE_enum(
    "to",
    "",
    ["", "hugging_face", "ours", "tf1"],
    "The format to write; by default that of the checkpoint, or hugging_face.",
)
flags.DEFINE_enum("on_bad_text", "error", ["error", "replace"], "How to treat text that is not UTF-8.")
HISTORY = "resized.json"
LINES_AT_ONCE = 4096


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a change: the flags of these names."""

    init_checkpoint: str
    output_dir: str
    vocab_file: str
    do_lower_case: bool | None
    bert_config_file: str
    config: str
    max_seq_length: int | None
    positions: str
    prune: bool
    input_file: str
    keep_characters: bool
    words_file: str
    num_words: int
    min_frequency: int
    grow: bool
    vectors: str
    random_seed: int
    to: str
    on_bad_text: BadText

    @property
    def begins_model(self) -> bool:
        """Whether a new model is made from word vectors."""
        return bool(self.vectors and not self.init_checkpoint)

    @property
    def adds_words(self) -> bool:
        """Whether words are added to the vocabulary."""
        return bool(self.words_file or self.num_words)

    def check(self) -> None:
        """Raises ValueError if there is nothing to do, and for options that have no effect or contradict each other."""
        if not (self.max_seq_length or self.prune or self.adds_words or self.begins_model):
            raise ValueError("expected one of --max_seq_length, --prune, --words_file and --num_words")
        if (self.prune or bool(self.num_words)) != bool(self.input_file):
            raise ValueError(
                "--input_file: expected it with --prune (to keep its tokens) or --num_words, and only with these, "
                f"got {self.input_file!r}"
            )
        if self.words_file and self.num_words:
            raise ValueError("expected one of --words_file and --num_words, got both")
        if self.bert_config_file and self.config:
            raise ValueError("expected one of --bert_config_file and --config, got both")
        if not self.init_checkpoint and (not self.vocab_file or self.prune or self.max_seq_length):
            raise ValueError("expected --init_checkpoint or, to only add words or make a new model, --vocab_file")
        if self.begins_model and not (self.config or self.bert_config_file):
            raise ValueError(
                "--vectors needs --init_checkpoint, to map the vectors to its embeddings, or the configuration "
                "of a new model (--bert_config_file, --config)"
            )

    def lines(self) -> Iterator[str]:
        """Returns the lines of the texts."""
        paths = find_files(self.input_file, "--input_file")
        check_prepared_files(paths)
        return (line.strip() for path in paths for line in read_lines(path, on_bad_text=self.on_bad_text))


def in_parts(lines: Iterator[str]) -> Iterator[list[str]]:
    """Yields lists of `LINES_AT_ONCE` lines."""
    while part := list(itertools.islice(lines, LINES_AT_ONCE)):
        yield part


def read_model(settings: Settings) -> "StoredModel":
    """Returns the model. Without a checkpoint, returns a vocabulary and its configuration (if given), no weights."""
    from official_bert.models.interchange import casing, formats, stored_models
    from official_bert.models.interchange.projects import ours

    if not settings.init_checkpoint:
        model = (
            configuration.load_config(settings.config or None, bert_config_file=settings.bert_config_file or None).model
            if settings.config or settings.bert_config_file
            else None
        )
        vocab = load_vocab(settings.vocab_file)
        return stored_models.StoredModel(
            origin=settings.vocab_file,
            weights={},
            table=ours.TABLE,
            config=model,
            vocab=list(vocab),
            do_lower_case=is_lower_case(settings, vocab),
        )
    stored = formats.read(settings.init_checkpoint)
    if stored.head == "replaced" and written_format(settings) == "ours":
        raise ValueError(
            f"--init_checkpoint={settings.init_checkpoint}: it detects replaced tokens, and --to=ours would need its "
            "generator, which is not resized; --to=hugging_face writes only the discriminator, from which a run with "
            "options.objective replaced_tokens may start"
        )
    if stored.generator is not None:
        print(f"{stored.origin}: its generator is left out, because it would have to be resized too")
        stored = dataclasses.replace(stored, generator=None)
    if settings.bert_config_file:
        if run := RunFolder.holding(settings.init_checkpoint):
            raise ValueError(
                f"--bert_config_file={settings.bert_config_file}: expected none, because {run.path} has its own "
                f"configuration"
            )
        values = configuration.read_bert_config(settings.bert_config_file)
        stored = dataclasses.replace(
            stored, config=configuration.build(configuration.ModelConfig, values, settings.bert_config_file)
        )
    stored_models.require_config(stored)
    stored = casing.with_vocabulary(stored, settings.vocab_file)
    lower_case = casing.agreed(casing.is_lower_case(stored), settings.do_lower_case, stored.origin)
    if lower_case is None and stored.vocab is not None:
        lower_case = casing.of_folder(settings.vocab_file or settings.init_checkpoint, stored.vocab) is not False
    return dataclasses.replace(stored, do_lower_case=lower_case)


def is_lower_case(settings: Settings, vocab: Mapping[str, int]) -> bool:
    """Returns whether text is lower-cased: by --config or --do_lower_case, or by the vocabulary and its folder's name.

    The flag overrides values that --config inherits. Raises ValueError if they contradict each other.
    """
    from official_bert.models.interchange import casing

    both = configuration.inherited_and_own(settings.config) if settings.config else ({}, {})
    inherited, own = ((values.get("tokenizer") or {}).get("do_lower_case") for values in both)
    lower_case = casing.agreed(own, settings.do_lower_case, settings.config)
    lower_case = inherited if lower_case is None else lower_case
    if lower_case is None:
        lower_case = casing.of_folder(settings.vocab_file, vocab) is not False
    check_casing(settings.vocab_file, vocab, lower_case)
    return lower_case


def prune(
    stored: "StoredModel", tokenizer: "Tokenizer", settings: Settings
) -> "tuple[StoredModel, Tokenizer, dict[str, Any]]":
    """Returns the model with only the tokens of the texts, its tokenizer, and a note.

    Raises ValueError if the tokens of a line would change.
    """
    from official_bert.tools.resizing import own_words, tokenizers
    from official_bert.tools.resizing import weights as resizing

    counts = np.zeros(tokenizer.size, np.int64)
    for lines in in_parts(settings.lines()):
        ids = [index for line in lines for index in tokenizer.tokenize_ids(line)]
        counts += np.bincount(ids, minlength=tokenizer.size)
    used = {tokenizer.inv_vocab[index] for index in np.flatnonzero(counts)}
    tokens = tokenizers.tokens_to_keep(tokenizer, used, settings.keep_characters)
    if stored.tokenizer:
        files = tokenizers.pruned(tokenizer, tokens)  # type: ignore[arg-type]
        new, pruned = own_words.with_tokenizer(stored, files=files)
    else:
        new, pruned = own_words.with_tokenizer(stored, vocab=[token for token in stored.vocab or () if token in tokens])
    unknown = tokenizer.special_id("[UNK]")
    sources = [[tokenizer.vocab.get(pruned.inv_vocab.get(index, ""), unknown)] for index in range(pruned.size)]
    now = np.array([pruned.vocab.get(tokenizer.inv_vocab.get(index, ""), -1) for index in range(tokenizer.size)])
    for line in settings.lines():
        if pruned.tokenize_ids(line) != now[tokenizer.tokenize_ids(line)].tolist():
            raise ValueError(
                f"{settings.input_file}: {line[:80]!r} would have other tokens; this tokenizer cannot be pruned"
            )
    note = {
        "from": len(stored.weights[resizing.WORDS]),
        "to": pruned.size,
        "tokens_of_the_text": int(counts.sum()),
        "characters_kept": settings.keep_characters,
    }
    return resizing.with_entries(new, sources), pruned, note


def wanted_words(stored: "StoredModel", tokenizer: "Tokenizer", settings: Settings) -> list[str]:
    """Returns the words to add; those chosen from text are sorted, the best first.

    Raises ValueError for a line of several words.
    """
    from official_bert.tools.vocabulary import vocab_learning

    if settings.num_words:
        if stored.tokenizer:
            raise ValueError(
                "--num_words: words are chosen only for a WordPiece vocabulary; for this tokenizer, use --words_file"
            )
        counts = vocab_learning.count_words(settings.lines(), tokenizer.do_lower_case)
        return vocab_learning.choose_domain_words(counts, tokenizer, settings.num_words, settings.min_frequency)  # type: ignore[arg-type]
    words: list[str] = []
    for number, line in enumerate(
        read_lines(settings.words_file, on_bad_text=settings.on_bad_text) if settings.words_file else (), 1
    ):
        split = line.split() if stored.tokenizer else tokenizer.basic_tokenizer.tokenize(line)  # type: ignore[attr-defined]
        if len(split) > 1:
            raise ValueError(
                f"{settings.words_file}:{number}: expected one word, got {line.strip()!r}, which the tokenizer always "
                f"splits into {' '.join(split)}"
            )
        words += split
    return list(dict.fromkeys(words))


def extend(
    stored: "StoredModel", tokenizer: "Tokenizer", settings: Settings
) -> "tuple[StoredModel, Tokenizer, dict[int, list[int]], dict[str, Any]]":
    """Returns the model with more words, its tokenizer, {id of a new word: tokens that spelled it}, and a note."""
    from official_bert.text.subwords.host import WORD_START
    from official_bert.tools.resizing import own_words, tokenizers
    from official_bert.tools.resizing import weights as resizing

    words = wanted_words(stored, tokenizer, settings)
    if stored.tokenizer:
        no_piece = {WORD_START, tokenizer.special["[UNK]"]}
        new = [
            word
            for word in words
            if word not in tokenizer.vocab  # words that are a token already stay as they are
            and len(set(tokenizer.tokenize_word(word)) - no_piece) != 1
        ]
        files = tokenizers.extended(tokenizer, new)  # type: ignore[arg-type]
        changed, larger = own_words.with_tokenizer(stored, files=files)
    else:
        entries, ids = extend_vocab(tokenizer.vocab, words, settings.grow)
        new = list(ids)
        changed, larger = own_words.with_tokenizer(stored, vocab=entries)
    old = (
        len(stored.weights[resizing.WORDS])
        if stored.weights
        else stored.config.vocab_size
        if stored.config
        else len(tokenizer.vocab)
    )
    rows, unknown = max(old, larger.size), [tokenizer.special_id("[UNK]")]
    pieces = {
        larger.vocab[word]: tokenizer.convert_tokens_to_ids(tokenizer.tokenize_word(word)) or unknown for word in new
    }
    if spelled := [word for word in new if pieces[larger.vocab[word]] == unknown]:
        print(
            f"warning: {len(spelled)} words could not be spelled before and begin as [UNK]: {' '.join(spelled[:5])}",
            file=sys.stderr,
        )
    slots = sum(index < tokenizer.size for index in pieces)
    print(
        f"{settings.output_dir}: {len(new)} new words ({slots} in [unusedN] slots, {len(new) - slots} rows added; "
        f"{len(words) - len(new)} existed already), vocab_size {rows}"
    )
    if changed.config is None:
        return changed, larger, pieces, {}
    changed = resizing.with_entries(changed, [pieces.get(index, [min(index, old - 1)]) for index in range(rows)])
    return changed, larger, pieces, {"words": len(new), "rows": rows}


def write_without_checkpoint(stored: "StoredModel", _: Mapping[str, Any], settings: Settings, folder: str) -> None:
    """Writes a vocabulary, its configuration in the form in which it was given, and the model that starts from word
    vectors.
    """
    from official_bert.models.interchange.stored_models import require_config

    words = stored.vocab or ()
    if settings.begins_model:
        from official_bert.tools.resizing import own_words
        from official_bert.tools.resizing import weights as resizing

        vectors, config = own_words.vectors_of(stored, settings.vectors, settings.on_bad_text), require_config(stored)
        resizing.begin_with_vectors(config, vectors, settings.random_seed, folder, "ours" if settings.config else "tf1")
        width, size, total = len(next(iter(vectors.values()))), config.hidden_size, sum(map(own_words.is_word, words))
        projected = (
            "" if width == size else f"projected from {width} to {size} numbers by a random orthonormal matrix, "
        )
        print(
            f"{settings.vectors}: vectors for {len(vectors)} of {total} words of the vocabulary "
            f"({len(vectors) / max(total, 1):.1%}); {projected}scaled to initializer_range "
            f"{config.initializer_range:g}; all other weights are random (seed {settings.random_seed})"
        )
    with open(os.path.join(folder, VOCAB_FILE), "w", encoding="utf-8", newline="\n") as file:
        file.write("\n".join(words) + "\n")
    if settings.config:
        run = configuration.load_config(settings.config)
        tokenizer = dataclasses.replace(
            run.tokenizer,
            vocab_file=os.path.join(settings.output_dir, VOCAB_FILE),
            do_lower_case=bool(stored.do_lower_case),
        )
        configuration.save_config(
            dataclasses.replace(run, tokenizer=tokenizer, model=require_config(stored)),
            os.path.join(folder, CONFIG_FILE),
        )
    elif settings.bert_config_file:
        values = read_json(settings.bert_config_file) | {"vocab_size": require_config(stored).vocab_size}
        write_json(os.path.join(folder, "bert_config.json"), values, "\n", indent=2)


def with_vocabulary(stored: "StoredModel", settings: Settings, changes: dict[str, Any]) -> "StoredModel":
    """Returns the model with the requested tokens and words; adds notes to `changes`."""
    from official_bert.tools.resizing import own_words

    if not stored.tokenizer and stored.vocab is None:
        raise ValueError(
            f"--init_checkpoint={settings.init_checkpoint}: no vocabulary found beside it; --vocab_file names one"
        )
    config = stored.config
    stored, tokenizer = own_words.with_tokenizer(stored)
    if config:
        check_size(settings.vocab_file or stored.origin, tokenizer.size, config.vocab_size)
    if settings.prune:
        stored, tokenizer, changes["pruned"] = prune(stored, tokenizer, settings)
    if settings.adds_words or settings.begins_model:
        stored, tokenizer, pieces, changes["extended"] = extend(stored, tokenizer, settings)
        if settings.vectors and not settings.begins_model:
            stored, changes["vectors"] = own_words.map_vectors(stored, pieces, settings.vectors, settings.on_bad_text)
    padding = config.first_position - 1 if config else -1
    if padding >= 0 and tokenizer.special_id("[PAD]") != padding:
        raise ValueError(
            f"{settings.init_checkpoint}: its positions begin at {padding + 1}, after the id of padding, which would "
            f"become {tokenizer.special_id('[PAD]')}: such a vocabulary cannot be pruned"
        )
    return stored


def with_positions(stored: "StoredModel", settings: Settings, changes: dict[str, Any]) -> "StoredModel":
    """Returns the model for rows of --max_seq_length; adds a note to `changes`."""
    from official_bert.models.interchange.stored_models import require_config
    from official_bert.tools.resizing import weights as resizing

    longest = require_config(stored).longest_row
    assert settings.max_seq_length is not None  # else nobody asks for this
    is_cut, has_table = settings.max_seq_length <= longest, resizing.POSITIONS in stored.weights
    how = "no table" if not has_table else "cut" if is_cut else settings.positions
    changes["positions"] = {"from": longest, "to": settings.max_seq_length, "how": how}
    return resizing.resize_positions(stored, settings.max_seq_length, settings.positions)  # type: ignore[arg-type]


def main(_: list[str]) -> None:
    """Reads and resizes the model, and writes it to a folder that appears when it is complete."""
    require_new_folder(FLAGS.output_dir, "--output_dir")
    settings = from_flags(Settings, FLAGS)
    settings.check()
    refuse_unread(
        FLAGS,
        [
            (["keep_characters"], settings.prune, "--prune"),
            (["min_frequency"], bool(settings.num_words), "--num_words"),
            (["grow"], settings.adds_words, "--words_file or --num_words"),
            (["positions"], bool(settings.max_seq_length), "--max_seq_length"),
            (["vectors"], settings.adds_words or settings.begins_model, "new words (--words_file, --num_words)"),
            (["random_seed"], settings.begins_model, "--vectors, and without --init_checkpoint"),
            (["config"], not settings.init_checkpoint, "no --init_checkpoint, which has its own configuration"),
            (["to"], bool(settings.init_checkpoint), "--init_checkpoint"),
        ],
    )
    stored, changes = read_model(settings), dict[str, Any]()
    if settings.prune or settings.adds_words or settings.begins_model:
        stored = with_vocabulary(stored, settings, changes)
    if settings.max_seq_length:
        stored = with_positions(stored, settings, changes)
    with written_folder(settings.output_dir) as folder:
        (write if settings.init_checkpoint else write_without_checkpoint)(stored, changes, settings, folder)
    for change, note in changes.items() if settings.init_checkpoint else ():
        print(f"{change}: {', '.join(f'{key} {value}' for key, value in note.items())}")
    print(f"{settings.output_dir}: {stored.origin}, resized")


def written_format(settings: Settings) -> str:
    """Returns the format to write: --to, else the checkpoint's if it can be written, else hugging_face."""
    from official_bert.models.interchange import formats

    kind = settings.to or formats.find_format(settings.init_checkpoint)[0]
    return kind if kind in ("ours", "hugging_face", "tf1") else "hugging_face"


def write(stored: "StoredModel", changes: Mapping[str, Any], settings: Settings, folder: str) -> None:
    """Writes the checkpoint and its history, which continues that of the checkpoint that was read."""
    from official_bert.models.interchange import formats

    before = os.path.join(settings.init_checkpoint, HISTORY)
    formats.make_model(stored)
    formats.write(stored, written_format(settings), folder)
    history = [
        *(read_json(before) if os.path.isfile(before) else []),
        {"of": os.path.basename(os.path.normpath(settings.init_checkpoint)), **changes},
    ]
    write_json(os.path.join(folder, HISTORY), history, "\n", indent=2)


if __name__ == "__main__":
    run_main(main)
