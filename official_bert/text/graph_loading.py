"""Makes the tokenizer of a vocabulary file in TensorFlow ops, of whatever kind it is."""

from tensorflow import Tensor

from official_bert.text import loading
from official_bert.text.graph import GraphTokenizer
from official_bert.text.graph_subwords import GraphSubwords, Tokens
from official_bert.text.subwords import tokenizer_files
from official_bert.text.subwords.word_pieces import WordPieceTokenizer

AnyGraphTokenizer = GraphTokenizer | GraphSubwords


class GraphWordPieces(GraphSubwords):
    """`WordPieceTokenizer` as a graph: the 2018 tokenizer, applied between the special tokens of a text."""

    def __init__(self, host: WordPieceTokenizer):
        super().__init__(host)
        self._plain = GraphTokenizer(host.vocab_file, host.do_lower_case, host.plain.vocab)
        self.resources = self._plain.resources

    def _pieces(self, text: Tensor) -> Tokens:
        ids, starts, ends = self._plain.tokenize_with_offsets(text)
        return Tokens(ids.values, starts.values, ends.values, ids.row_splits)


def load_graph(vocab_file: str, do_lower_case: bool = True) -> AnyGraphTokenizer:
    """Returns the TensorFlow form of `loading.load(vocab_file, do_lower_case)`.

    Raises ValueError for unusable files, and for a tokenizer without such a form.
    """
    if not tokenizer_files.is_subwords(vocab_file):
        return GraphTokenizer(vocab_file, do_lower_case)
    host = loading.load(vocab_file)
    if host.exportable:
        raise ValueError(f"{vocab_file}: {host.exportable}")
    from official_bert.text.graph_byte_bpe import GraphByteBpe
    from official_bert.text.graph_unigram import GraphUnigram

    classes: dict[str, type[GraphSubwords]] = {
        "byte_bpe": GraphByteBpe,
        "unigram": GraphUnigram,
        "wordpiece": GraphWordPieces,
    }
    return classes[host.kind](host)  # type: ignore[arg-type]
