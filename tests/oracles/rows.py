"""Texts as padded rows of ids, by the plain tokenizer and the plain packing."""

import numpy as np

from official_bert.text import packing


def rows_by_hand(plain, first, second=None, length=32):
    """One row each, packed and padded without the graph, and whether each was cut."""
    ids = [[plain.convert_tokens_to_ids(plain.tokenize(text)) for text in column] for column in (first, second or first)]
    pairs = zip(*ids) if second else ((a, None) for a in ids[0])
    packed, cut = [], []
    for a, b in pairs:
        packed.append(packing.pack_padded(a, b, plain.special_id("[CLS]"), plain.special_id("[SEP]"), length))
        cut.append(len(a) + len(b or ()) > length - (3 if b else 2))
    return {name: np.stack([row[name] for row in packed]) for name in packed[0]}, cut
