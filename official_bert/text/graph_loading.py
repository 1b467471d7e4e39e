"""Makes the tokenizer of a vocabulary file in TensorFlow ops, of whatever kind it is."""

from official_bert.text import loading
from official_bert.text.graph import GraphTokenizer
from official_bert.text.graph_subwords import GraphSubwords
from official_bert.text.subwords import tokenizer_files

AnyGraphTokenizer = GraphTokenizer | GraphSubwords


def load_graph(vocab_file: str, do_lower_case: bool = True) -> AnyGraphTokenizer:
    """Returns the graph's form of `loading.load(vocab_file, do_lower_case)`.

    Raises ValueError for files that cannot be used, and for a tokenizer without such a form.
    """
    if not tokenizer_files.is_subwords(vocab_file):
        return GraphTokenizer(vocab_file, do_lower_case)
    host = loading.load(vocab_file)
    if host.exportable:
        raise ValueError(f"{vocab_file}: {host.exportable}")
    from official_bert.text.graph_byte_bpe import GraphByteBpe
    from official_bert.text.graph_unigram import GraphUnigram
    from official_bert.text.graph_word_pieces import GraphWordPieces
    classes: dict[str, type[GraphSubwords]] = {
        "byte_bpe": GraphByteBpe, "unigram": GraphUnigram, "wordpiece": GraphWordPieces}
    return classes[host.kind](host)  # type: ignore[arg-type]
