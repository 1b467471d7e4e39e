"""Hugging Face tokenizers."""

PACKAGES, ENVIRONMENT, INSTALL = ("tokenizers",), ".venv-torch", "make venv-torch"


def _tokenizer(given, kind="uncased"):
    from tokenizers.implementations import BertWordPieceTokenizer

    return BertWordPieceTokenizer(given.vocabulary(kind), lowercase=kind != "cased")


def tokens(given, kind):
    encoded = _tokenizer(given, kind).encode_batch(given.texts(kind), add_special_tokens=False)
    return [row.ids for row in encoded]


def offsets(given):
    encoded = _tokenizer(given).encode_batch(given.texts("uncased"), add_special_tokens=False)
    return [[(number, *span) for number, span in zip(row.ids, row.offsets)] for row in encoded]


def pairs(given):
    tokenizer = _tokenizer(given)
    tokenizer.enable_truncation(given.values["max_seq_length"], strategy="longest_first")
    rows = [tokenizer.encode(a, b) for a, b in given.values["pairs"]]
    return [[row.ids, row.type_ids] for row in rows]
