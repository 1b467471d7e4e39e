"""tensorflow-text: BertTokenizer."""

PACKAGES, ENVIRONMENT, INSTALL = ("tensorflow-text",), ".venv", "make install"


def _tokenizer(given, kind="uncased"):
    import tensorflow as tf
    import tensorflow_text

    return tensorflow_text.BertTokenizer(given.vocabulary(kind), lower_case=kind != "cased", token_out_type=tf.int32)


def tokens(given, kind):
    texts = [text.encode("utf-8", "replace") for text in given.texts(kind)]
    return _tokenizer(given, kind).tokenize(texts).merge_dims(1, 2).to_list() if texts else []


def offsets(given):
    texts = [text.encode("utf-8", "replace") for text in given.texts("uncased")]
    found = _tokenizer(given).tokenize_with_offsets(texts)
    rows = zip(given.texts("uncased"), *(part.merge_dims(1, 2).to_list() for part in found))
    return [
        [(number, *(_characters(text, place) for place in span)) for number, *span in zip(*parts)]
        for text, *parts in rows
    ]


def _characters(text, size):
    """Returns how many characters the first bytes of a text are."""
    return len(text.encode("utf-8", "replace")[:size].decode("utf-8", "replace"))
