"""The SentencePiece model of a unigram tokenizer that is stored in `tokenizer.json` alone, for TensorFlow's op."""

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np

from official_bert.text.subwords import model_proto
from official_bert.text.subwords.character_map import Steps, joined
from official_bert.text.subwords.host import LibraryTokenizer

BEFORE = ("NFKD", "StripAccents", "Lowercase")  # steps of ALBERT's normalizer; Replace and Precompiled are the others


def model_of(host: LibraryTokenizer) -> tuple[bytes, np.ndarray]:
    """Returns the model, and the id of each of its pieces.

    Raises ValueError for a normalizer that has no form in it.
    """
    settings = host.settings["model"]
    vocab = settings["vocab"]
    unknown = settings.get("unk_id")
    special = {token.content for token in host.added}
    model = model_proto.ModelProto()
    for index, (piece, score) in enumerate(vocab):
        kind = model_proto.UNKNOWN if index == unknown else model_proto.CONTROL if piece in special else model_proto.NORMAL
        model.pieces.add(piece=piece, score=score, type=kind)
    if unknown is None:
        raise ValueError(f"{host.vocab_file}: tokenizer.json: model.unk_id: expected the id of an unknown piece, got none")
    steps, charsmap = _steps(host.settings.get("normalizer"), host.vocab_file)
    model.normalizer_spec.precompiled_charsmap = joined(charsmap, steps)
    model.trainer_spec.model_type = model_proto.UNIGRAM
    return model.SerializeToString(), np.arange(len(vocab))


def _steps(normalizer: Mapping[str, Any] | None, where: str) -> tuple[Steps, bytes]:
    """Returns what a normalizer does, as steps and a character map."""
    normalizers = (normalizer or {}).get("normalizers") or ([normalizer] if normalizer else [])
    names, charsmap, quotes = [], b"", False
    for step in normalizers:
        kind, pattern = step.get("type"), (step.get("pattern") or {})
        if kind == "Replace" and pattern.get("String") in ("``", "''") and step.get("content") == '"':
            quotes = True
        elif kind == "Precompiled":
            charsmap = base64.b64decode(step["precompiled_charsmap"])
        elif kind in BEFORE and not charsmap:
            names.append(kind)
        elif not (kind == "Strip" or (kind == "Replace" and pattern.get("Regex") == " {2,}" and step.get("content") == " ")):
            raise ValueError(f"{where}: tokenizer.json: normalizer: {kind} is not computed here")
    accents = [name for name in names if name != "Lowercase"]
    if accents not in ([], ["NFKD", "StripAccents"]):
        raise ValueError(f"{where}: tokenizer.json: normalizer: expected NFKD and StripAccents together, got {' '.join(accents)}")
    return Steps(quotes, bool(accents), "Lowercase" in names), charsmap
