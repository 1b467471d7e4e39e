"""tokie: reads Hugging Face's tokenizer.json; its offsets count bytes."""

PACKAGES, ENVIRONMENT, INSTALL = ("tokie",), ".venv-torch", "make venv-torch"


def _tokenizer(given, kind="uncased"):
    import tokie

    return tokie.Tokenizer.from_json(given.tokenizer_json(kind))


def tokens(given, kind):
    return [row.ids for row in _tokenizer(given, kind).encode_batch(given.texts(kind), add_special_tokens=False)]


def offsets(given):
    tokenizer, rows = _tokenizer(given), []
    for text in given.texts("uncased"):
        row, places, size = tokenizer.encode_with_offsets(text, add_special_tokens=False), {0: 0}, 0
        for number, char in enumerate(text, 1):
            size += len(char.encode())
            places[size] = number
        spans = [[places.get(place, -1) for place in span] for span in row.offsets]
        rows.append([(number, *span) for number, span in zip(row.ids, spans)])
    return rows


def pairs(given):
    tokenizer = _tokenizer(given)
    tokenizer.enable_truncation(given.values["max_seq_length"], strategy="longest_first")
    rows = [tokenizer.encode(a) if b is None else tokenizer.encode_pair(a, b) for a, b in given.values["pairs"]]
    return [[row.ids, row.type_ids] for row in rows]
