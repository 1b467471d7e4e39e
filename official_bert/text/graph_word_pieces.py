"""WordPiece with special tokens of its own in TensorFlow: the graph of 2018's tokenizer between the special tokens of a text."""

import tensorflow as tf

from official_bert.text.graph import GraphTokenizer
from official_bert.text.graph_subwords import GraphSubwords, Tokens
from official_bert.text.subwords.word_pieces import WordPieceTokenizer


class GraphWordPieces(GraphSubwords):
    """`WordPieceTokenizer` as a graph."""

    def __init__(self, host: WordPieceTokenizer):
        super().__init__(host)
        self._plain = GraphTokenizer(host.vocab_file, host.do_lower_case, host.plain.vocab)

    def _pieces(self, text: tf.Tensor) -> Tokens:
        ids, starts, ends = self._plain.tokenize_with_offsets(text)
        return Tokens(ids.values, starts.values, ends.values, ids.row_splits)
