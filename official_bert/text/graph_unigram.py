"""SentencePiece unigram models in TensorFlow: tensorflow-text's op, then the ids of the tokenizer's own scheme.

W words, T tokens.
"""

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text
from tensorflow import Tensor

from official_bert.text.graph_subwords import GraphSubwords, Tokens, running_maximum
from official_bert.text.subwords import model_proto
from official_bert.text.subwords.character_map import Steps, joined
from official_bert.text.subwords.host import WORD_START, LibraryTokenizer, SentencePieceTokenizer

FRACTIONS = 2.0**13  # of scores
HIDDEN_SPACE = "\0"  # as long as a space
BEFORE = ("NFKD", "StripAccents", "Lowercase")  # steps of ALBERT's normalizer; Replace and Precompiled are the others


class GraphUnigram(GraphSubwords):
    """A unigram tokenizer as a graph.

    The op sums scores in float32, and so which of two spellings with equal scores ("0", "00" and "00", "0") it gives
    would depend on how much text stands before. So it gets the words between spaces one by one, which no piece crosses,
    and scores rounded to 2^-13: sums of such scores are exact up to 2,048. Then it gives the libraries' spelling, the
    one whose last piece is longest.
    """

    def __init__(self, host: SentencePieceTokenizer | LibraryTokenizer):
        super().__init__(host)
        model, ids = (host.model, host.ids) if isinstance(host, SentencePieceTokenizer) else model_of(host)
        with tf.init_scope():
            self._op = tf_text.SentencepieceTokenizer(model=_rounded(model, host.vocab_file), out_type=tf.int32)
            self._ids = tf.constant(np.asarray(ids, np.int32))
        self.resources = [self._op]
        # Without a piece for a space alone, unknown characters in neighbouring words would be one piece.
        self._by_word = WORD_START in host.vocab and not _crosses_words(host, model)

    def _pieces(self, text: Tensor) -> Tokens:
        words = self._words(text)
        # [W,(T)], in bytes of the word
        pieces, starts, ends = self._op.tokenize_with_offsets(words.values)
        lengths = tf.strings.length(words.values)
        before = tf.cumsum(lengths + 1, exclusive=True)  # a space behind each word
        # every text has a word, which may be empty
        text_start = tf.gather(before, words.row_splits[:-1])
        word_start = before - tf.repeat(text_start, words.row_lengths())
        starts, ends = (
            tf.cast(part.values, tf.int32) + tf.gather(word_start, pieces.value_rowids()) for part in (starts, ends)
        )
        starts = _with_words_of_no_piece(starts, pieces, word_start, words.row_starts())
        row_splits = tf.gather(pieces.row_splits, words.row_splits)
        row = tf.repeat(tf.range(tf.size(text)), row_splits[1:] - row_splits[:-1])
        starts, ends = (_characters(text, part, row) for part in (starts, ends))
        return Tokens(tf.gather(self._ids, pieces.values), starts, ends, row_splits)

    def _words(self, text: Tensor) -> tf.RaggedTensor:
        """Returns what stands between the spaces of texts; a text with the letter for a space is one word, as spaces
        beside it are no superfluous ones.
        """
        if not self._by_word:
            return tf.RaggedTensor.from_row_lengths(text, tf.ones_like(text, tf.int64))
        whole = tf.strings.regex_full_match(text, f"(?s).*{WORD_START}.*")

        def some_whole() -> tf.RaggedTensor:
            hidden = tf.where(whole, tf.strings.regex_replace(text, " ", HIDDEN_SPACE), text)
            words = tf.strings.split(hidden, " ")
            shown = tf.strings.regex_replace(words.values, HIDDEN_SPACE, " ")
            return words.with_values(tf.where(tf.repeat(whole, words.row_lengths()), shown, words.values))

        return tf.cond(tf.reduce_any(whole), some_whole, lambda: tf.strings.split(text, " "))


def _crosses_words(host: SentencePieceTokenizer | LibraryTokenizer, model: bytes) -> bool:
    """Whether a piece may hold text of several words."""
    if isinstance(host, LibraryTokenizer):
        steps = _listed(host.settings["pre_tokenizer"], "pretokenizers")
        return len(steps) == 1 and steps[0].get("split") is False
    pieces = model_proto.read(model, host.vocab_file).pieces
    return any(
        WORD_START in piece.piece.strip(WORD_START) or (piece.type == model_proto.USER_DEFINED and " " in piece.piece)
        for piece in pieces
    )


def _with_words_of_no_piece(starts: Tensor, pieces: tf.RaggedTensor, word_start: Tensor, text_starts: Tensor) -> Tensor:
    """Lets the first piece behind words without any, such as a lone accent for ALBERT, begin with them, as in the
    library.
    """
    has_pieces = pieces.row_lengths() > 0  # [W]
    place = tf.range(tf.size(word_start))
    begins = tf.tensor_scatter_nd_update(
        tf.concat([[True], has_pieces[:-1]], 0), text_starts[:, None], tf.ones_like(text_starts, tf.bool)
    )
    run_start = tf.gather(word_start, running_maximum(tf.where(begins, place + 1, 0)) - 1)
    first = tf.boolean_mask(pieces.row_starts(), has_pieces)
    return tf.tensor_scatter_nd_update(starts, first[:, None], tf.boolean_mask(run_start, has_pieces))


def _rounded(content: bytes, where: str) -> bytes:
    """Returns a model with rounded scores."""
    model = model_proto.read(content, where)
    for piece in model.pieces:
        piece.score = round(piece.score * FRACTIONS) / FRACTIONS
    return model.SerializeToString()


def _characters(text: Tensor, places: Tensor, row: Tensor) -> Tensor:
    """Returns the characters of texts that begin at bytes `places` [T] of the texts `row` [T]."""
    codes, offsets = tf.strings.unicode_decode_with_offsets(text, "UTF-8")
    first = tf.cast(codes.row_starts(), tf.int32)
    text_lengths = tf.strings.length(text)
    shift = tf.cumsum(text_lengths, exclusive=True)
    every = tf.cast(offsets.values, tf.int32) + tf.gather(shift, tf.cast(codes.value_rowids(), tf.int32))
    return tf.searchsorted(every, places + tf.gather(shift, row)) - tf.gather(first, row)


def model_of(host: LibraryTokenizer) -> tuple[bytes, np.ndarray]:
    """Returns the SentencePiece model as bytes, and the id of each of its pieces.

    Raises ValueError for a normalizer that such a model cannot express.
    """
    normalizers = {step.get("type"): step for step in _listed(host.settings.get("normalizer"), "normalizers")}
    trims = normalizers.get("Strip", {}).get("strip_right") and _is_of_spaces(normalizers.get("Replace", {}))
    splits = len(_listed(host.settings["pre_tokenizer"], "pretokenizers")) > 1
    later = [
        token["content"]
        for token in host.settings["added_tokens"]
        if token.get("normalized") and not token.get("lstrip")
    ]
    if later and not splits:
        raise ValueError(
            f"{host.vocab_file}: tokenizer.json: added token {later[0]!r}: expected normalized false, lstrip true or a "
            "pre-tokenizer WhitespaceSplit: else the space before it is a token, which TensorFlow's SentencePiece does "
            "not give"
        )
    if not splits and not trims:
        raise ValueError(
            f"{host.vocab_file}: tokenizer.json: expected a pre-tokenizer WhitespaceSplit, or normalizers "
            "Strip and Replace of several spaces: else superfluous spaces are tokens, which TensorFlow's "
            "SentencePiece does not give"
        )
    settings = host.settings["model"]
    vocab = settings["vocab"]
    unknown = settings.get("unk_id")
    special = {token.content for token in host.added}
    model = model_proto.ModelProto()
    for index, (piece, score) in enumerate(vocab):
        kind = (
            model_proto.UNKNOWN if index == unknown else model_proto.CONTROL if piece in special else model_proto.NORMAL
        )
        model.pieces.add(piece=piece, score=score, type=kind)
    steps, charsmap = _steps(host.settings.get("normalizer"), host.vocab_file)
    model.normalizer_spec.precompiled_charsmap = joined(charsmap, steps, host.vocab_file)
    model.trainer_spec.model_type = model_proto.UNIGRAM
    content = model.SerializeToString()
    model_proto.processor(content, host.vocab_file)  # TensorFlow's op would fail with an error of its own
    return content, np.arange(len(vocab))


def _listed(step: Mapping[str, Any] | None, key: str) -> list[Mapping[str, Any]]:
    """Returns the steps of a sequence, or the only one."""
    return (step or {}).get(key) or ([step] if step else [])


def _is_of_spaces(replacement: Mapping[str, Any]) -> bool:
    """Whether a step makes several spaces one."""
    several = (replacement.get("pattern") or {}).get("Regex") == " {2,}"
    return several and replacement.get("content") in (" ", WORD_START)


def _steps(normalizer: Mapping[str, Any] | None, where: str) -> tuple[Steps, bytes]:
    """Returns what a normalizer does, as steps and a character map."""
    normalizers = _listed(normalizer, "normalizers")
    names, charsmap, quotes = [], b"", False
    for step in normalizers:
        kind, pattern = step.get("type"), (step.get("pattern") or {})
        if kind == "Replace" and pattern.get("String") in ("``", "''") and step.get("content") == '"':
            quotes = True
        elif kind == "Precompiled":
            charsmap = base64.b64decode(step["precompiled_charsmap"])
        elif kind in BEFORE and not charsmap:
            names.append(kind)
        elif not (kind == "Strip" or (kind == "Replace" and _is_of_spaces(step))):
            raise ValueError(f"{where}: tokenizer.json: normalizer: {kind} is not supported")
    accents = [name for name in names if name != "Lowercase"]
    if accents not in ([], ["NFKD", "StripAccents"]):
        raise ValueError(
            f"{where}: tokenizer.json: normalizer: expected NFKD and StripAccents together, got {' '.join(accents)}"
        )
    return Steps(quotes, bool(accents), "Lowercase" in names), charsmap
