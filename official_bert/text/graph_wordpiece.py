"""WordPiece in TensorFlow's own ops: one look-up finds words of the vocabulary, a trie cuts the others.

`FullTokenizer.split_word` goes through a word from left to right and always takes the longest piece. Here every byte of
the words is taken for the first one of a piece, and all go down the trie together, five bytes a step. The pieces of a
word are then those on the chain from its first byte. The steps are as many as the longest piece needs, so the work is
linear in a word's length.

W words, R of them not in the vocabulary, P pieces; N bytes of these R words, with a separator behind each.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow import Tensor

from official_bert.text.tokenization import MAX_WORD_LENGTH, UNKNOWN

SEPARATOR = b"\0"  # no word has it
BEGIN, CONTINUE = range(2)  # the trie's roots: of pieces that begin a word, and of those with ##
STEP = 5  # bytes; a trie's key is a node and the next bytes
NODE_SHIFT = 8 * STEP
POWERS = 256 ** np.arange(STEP)


class _Trie(NamedTuple):
    """Pieces cut into parts of five bytes. Nodes are numbered by depth, so the last one on a way has the largest."""

    keys: np.ndarray  # int64 [nodes - 2] parent, and the part's bytes, the first one lowest
    children: np.ndarray  # int64 [nodes - 2], shifted as in a key
    depths: np.ndarray  # int32 [nodes] bytes from the root
    ids: np.ndarray  # int32 [nodes] the longest piece on the way from the root
    lengths: np.ndarray  # int32 [nodes] bytes of that piece, 0 if there is none


class WordPieces(tf.Module):
    """`FullTokenizer.split_word` as a graph."""

    def __init__(self, vocab: Mapping[str, int]):
        super().__init__()
        words = {token: index for token, index in vocab.items() if len(token) <= MAX_WORD_LENGTH}
        trie = _trie(vocab)
        self._unknown = vocab[UNKNOWN]
        self._steps = int(trie.depths[-1]) // STEP
        with tf.init_scope():
            self._words = _table(list(words), np.array(list(words.values()), np.int32), -1)
            self._children = _table(trie.keys, trie.children, -1 << NODE_SHIFT)  # negative as the key of a child, too
            self._depths, self._ids, self._lengths = map(tf.constant, (trie.depths, trie.ids, trie.lengths))
        self.tables = [self._words, self._children]

    def __call__(self, words: Tensor) -> tuple[Tensor, Tensor]:
        """words [W] string -> ids [P] int32 and the place of each word's first piece [W+1] int32."""
        ids = self._words.lookup(words)
        return tf.cond(
            tf.reduce_all(ids >= 0),
            lambda: (ids, tf.range(tf.size(ids) + 1)),
            lambda: self._with_other_words(words, ids),
        )

    def _with_other_words(self, words: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """ids [W], -1 for words that are not in the vocabulary -> as `__call__`."""
        whole, other = (tf.cast(tf.where(part), tf.int32) for part in (ids >= 0, ids < 0))  # [W-R,1], [R,1]
        pieces, owner = self._cut(tf.gather_nd(words, other))
        word = tf.gather(other, owner)  # [P,1]
        counts = tf.tensor_scatter_nd_add(tf.cast(ids >= 0, tf.int32), word, tf.ones_like(owner))
        splits = tf.concat([[0], tf.cumsum(counts)], 0)
        # Before a piece stand the earlier pieces of the R words, and all whole words before its own word.
        place = tf.range(tf.size(owner)) + word[:, 0] - owner
        return tf.dynamic_stitch([tf.gather_nd(splits, whole), place], [tf.gather_nd(ids, whole), pieces]), splits

    def _cut(self, words: Tensor) -> tuple[Tensor, Tensor]:
        """words [R] -> ids [P], and the number of each piece's word [P] int32."""
        words = tf.where(tf.strings.length(words, "UTF8_CHAR") > MAX_WORD_LENGTH, UNKNOWN, words)
        padding = SEPARATOR * STEP * (self._steps + 1)
        text = tf.strings.reduce_join(tf.concat([words, [padding]], 0), separator=SEPARATOR)
        letters = tf.io.decode_raw(text, tf.uint8)
        ends = tf.equal(letters[: -len(padding)], 0)  # [N]
        begins = tf.concat([[True], ends[:-1]], 0)
        place = tf.range(tf.size(ends))
        piece = self._longest_pieces(tf.cast(letters, tf.int64), place, begins)
        passed, last = _follow(begins, place + tf.gather(self._lengths, piece))
        known = tf.gather(ends, last)
        used = tf.where(tf.where(known, passed, begins) & ~ends)  # [P,1]
        ids = tf.where(known, tf.gather(self._ids, piece), self._unknown)
        return tf.gather_nd(ids, used), tf.gather_nd(tf.cumsum(tf.cast(ends, tf.int32)), used)

    def _longest_pieces(self, letters: Tensor, place: Tensor, begins: Tensor) -> Tensor:
        """letters [N + padding] int64, place, begins [N] -> the trie's node of the longest piece from each byte on [N]
        int64.
        """
        start = tf.range(tf.size(letters) - STEP + 1)[:, None]
        parts = tf.reduce_sum(tf.gather(letters, start + tf.range(STEP)) * POWERS, 1)  # five bytes as in a key
        node = tf.where(begins, tf.constant(BEGIN << NODE_SHIFT, tf.int64), CONTINUE << NODE_SHIFT)
        way = [node]
        ahead = tf.range(0, STEP * self._steps, STEP)[:, None]
        for part in tf.unstack(tf.gather(parts, place + ahead), self._steps):
            node = self._children.lookup(tf.maximum(node + part, -1))
            way.append(node)
        last = tf.reduce_max(way, 0)
        behind = tf.gather(parts, place + tf.gather(self._depths, tf.bitwise.right_shift(last, NODE_SHIFT)))
        leaves = self._children.lookup(last + tf.bitwise.bitwise_and(behind, POWERS[1:, None] - 1))  # 1 to 4 bytes
        return tf.bitwise.right_shift(tf.maximum(last, tf.reduce_max(leaves, 0)), NODE_SHIFT)


def _follow(begins: Tensor, follower: Tensor) -> tuple[Tensor, Tensor]:
    """Follows the chains of `follower` [N], each round twice as far as the one before. Returns the places that those
    from where `begins` [N] pass, and where the chain from each place ends.
    """
    passed, count = tf.cast(begins, tf.int32), tf.size(begins)
    for _ in range(MAX_WORD_LENGTH.bit_length()):
        passed = tf.maximum(passed, tf.math.unsorted_segment_max(passed, follower, count))
        follower = tf.gather(follower, follower)
    return tf.cast(passed, tf.bool), follower


def _table(keys: list[str] | np.ndarray, values: np.ndarray, default: int) -> tf.lookup.StaticHashTable:
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, values), default)


def _trie(vocab: Mapping[str, int]) -> _Trie:
    pieces: dict[tuple[int, bytes], int] = {}
    for token, index in vocab.items():
        root = CONTINUE if token.startswith("##") else BEGIN
        piece = token.removeprefix("##")
        if 0 < len(piece) <= MAX_WORD_LENGTH and "\0" not in piece:
            pieces[root, piece.encode()] = index
    ways = {(root, piece[:end]) for root, piece in pieces for end in (*range(STEP, len(piece), STEP), len(piece))}
    nodes = [(BEGIN, b""), (CONTINUE, b""), *sorted(ways, key=lambda way: (len(way[1]), way))]
    numbers = {way: number for number, way in enumerate(nodes)}
    keys, ids, lengths = (np.zeros(len(nodes), kind) for kind in (np.int64, np.int32, np.int32))
    for (root, way), number in list(numbers.items())[2:]:
        *_, end = range(0, len(way), STEP)
        parent = numbers[root, way[:end]]
        keys[number] = (parent << NODE_SHIFT) + int.from_bytes(way[end:], "little")
        longest = next((way[:size] for size in range(len(way), end, -1) if (root, way[:size]) in pieces), b"")
        ids[number], lengths[number] = (
            (pieces[root, longest], len(longest)) if longest else (ids[parent], lengths[parent])
        )
    children = np.arange(2, len(nodes), dtype=np.int64) << NODE_SHIFT
    return _Trie(keys[2:], children, np.array([len(way) for _, way in nodes], np.int32), ids, lengths)
