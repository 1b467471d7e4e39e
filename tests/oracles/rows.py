"""Padded rows of ids, made with the plain tokenizer and packing."""

import numpy as np

from official_bert.text import packing


def rows_by_hand(plain, first, second=None, length=32):
    """Returns a row for each text, packed and padded without the graph, and whether it was cut."""
    ids = [
        [plain.convert_tokens_to_ids(plain.tokenize(text)) for text in column] for column in (first, second or first)
    ]
    pairs = zip(*ids) if second else ((a, None) for a in ids[0])
    packed, cut = [], []
    for a, b in pairs:
        packed.append(pack_padded(a, b, plain.special_id("[CLS]"), plain.special_id("[SEP]"), length))
        cut.append(len(a) + len(b or ()) > length - (3 if b else 2))
    return {name: np.stack([row[name] for row in packed]) for name in packed[0]}, cut


def pad(input_ids, segment_ids, max_seq_length, pad_id=0):
    """Returns `input_ids`, `input_mask` (1 = real token), `segment_ids`, each int32 [max_seq_length]; ValueError if the
    row is longer.
    """
    length = len(input_ids)
    if length > max_seq_length:
        raise ValueError(f"expected a row of at most {max_seq_length} tokens, got {length}")
    row = {name: np.zeros(max_seq_length, np.int32) for name in ("input_ids", "input_mask", "segment_ids")}
    row["input_ids"][length:] = pad_id
    row["input_ids"][:length] = input_ids
    row["input_mask"][:length] = 1
    row["segment_ids"][:length] = segment_ids
    return row


def pack_padded(ids_a, ids_b, cls_id, sep_id, max_seq_length, pad_id=0):
    """One example of a classifier, truncated, packed and padded; ValueError if the special tokens have no room."""
    ids_b = () if ids_b is None else ids_b
    special = 3 if len(ids_b) else 2
    if max_seq_length < special:
        raise ValueError(f"max_seq_length: expected at least {special} for the special tokens, got {max_seq_length}")
    ids_a, ids_b = packing.truncate_pair(ids_a, ids_b, max_seq_length - special)
    return pad(*packing.Template(cls_id, sep_id).pack(ids_a, ids_b), max_seq_length, pad_id)
