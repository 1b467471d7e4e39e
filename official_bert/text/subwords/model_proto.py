"""The fields of a SentencePiece `.model` file that are read and written here; other fields are preserved.

The library's own module for it demands a newer protobuf than TensorFlow and Apache Beam take.
"""

import math
from typing import Any

import sentencepiece
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # kinds of pieces
UNIGRAM = 1  # kind of model
_KINDS = descriptor_pb2.FieldDescriptorProto
# (name, number, type, default) by message; sentencepiece_model.proto
_FIELDS = {
    "Piece": (
        ("piece", 1, _KINDS.TYPE_STRING, ""),
        ("score", 2, _KINDS.TYPE_FLOAT, ""),
        ("type", 3, _KINDS.TYPE_INT32, "1"),
    ),
    "Trainer": (
        ("model_type", 3, _KINDS.TYPE_INT32, "1"),
        ("byte_fallback", 35, _KINDS.TYPE_BOOL, "false"),
        ("treat_whitespace_as_suffix", 24, _KINDS.TYPE_BOOL, "false"),
    ),
    "Normalizer": (
        ("precompiled_charsmap", 2, _KINDS.TYPE_BYTES, ""),
        ("add_dummy_prefix", 3, _KINDS.TYPE_BOOL, "true"),
        ("remove_extra_whitespaces", 4, _KINDS.TYPE_BOOL, "true"),
        ("escape_whitespaces", 5, _KINDS.TYPE_BOOL, "true"),
    ),
    "Model": (("pieces", 1, "Piece", ""), ("trainer_spec", 2, "Trainer", ""), ("normalizer_spec", 3, "Normalizer", "")),
}


def _message() -> Any:
    file = descriptor_pb2.FileDescriptorProto(
        name="official_bert/sentencepiece_model.proto", package="official_bert.sentencepiece"
    )
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for field, number, kind, default in fields:
            label = _KINDS.LABEL_REPEATED if field == "pieces" else _KINDS.LABEL_OPTIONAL
            added = message.field.add(name=field, number=number, label=label)
            if isinstance(kind, str):
                added.type, added.type_name = _KINDS.TYPE_MESSAGE, f".official_bert.sentencepiece.{kind}"
            else:
                added.type = kind
                if default:
                    added.default_value = default
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("official_bert.sentencepiece.Model"))


ModelProto = _message()


def read(content: bytes, where: str) -> Any:
    """Parses a `.model` file. Raises ValueError, naming `where`, for other files and other kinds of model."""
    model = ModelProto()
    try:
        model.ParseFromString(content)
    except Exception as error:  # google.protobuf.message.DecodeError, which differs between its implementations
        raise ValueError(f"{where}: expected a SentencePiece model, got another file ({error})") from None
    try:
        # by version and place, protobuf gives bytes or raises
        is_text = all(isinstance(piece.piece, str) for piece in model.pieces)
    except UnicodeDecodeError:
        is_text = False
    if not model.pieces:
        raise ValueError(f"{where}: expected a SentencePiece model, got a file without pieces")
    unknown = sum(piece.type == UNKNOWN for piece in model.pieces)
    if not is_text or unknown != 1 or not all(math.isfinite(piece.score) for piece in model.pieces):
        raise ValueError(
            f"{where}: damaged SentencePiece model: expected pieces in UTF-8 with finite scores, one of them unknown, "
            f"got {unknown} unknown, or others"
        )
    if model.trainer_spec.model_type != UNIGRAM or model.trainer_spec.byte_fallback:
        raise ValueError(
            f"{where}: expected a unigram model without byte fallback, got another kind of SentencePiece model"
        )
    if model.trainer_spec.treat_whitespace_as_suffix:
        raise ValueError(
            f"{where}: expected a SentencePiece model whose pieces begin with the space before a word, got one whose "
            "pieces end with the space behind it (treat_whitespace_as_suffix): no piece marks where a word begins"
        )
    if not (
        model.normalizer_spec.add_dummy_prefix
        and model.normalizer_spec.remove_extra_whitespaces
        and model.normalizer_spec.escape_whitespaces
    ):
        raise ValueError(
            f"{where}: expected a SentencePiece model that puts a space before a text and removes superfluous ones"
        )
    return model


def processor(content: bytes, where: str) -> sentencepiece.SentencePieceProcessor:
    """Returns the library's tokenizer of a model. Raises ValueError, naming `where`, for a model that it rejects."""
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=content)
    except RuntimeError as error:
        raise damage(error, where) from None


def release_symbols(model: Any, where: str) -> None:
    """Marks user symbols that contain a space as unused if they do not affect segmentation. No text has such a piece,
    as spaces become ▁; but the library would give all pieces of its characters one place.
    """
    symbols = [piece for piece in model.pieces if piece.type == USER_DEFINED and " " in piece.piece]
    for piece in symbols:
        piece.type = UNUSED
    normalize = processor(model.SerializeToString(), where).normalize
    for piece in symbols:
        if normalize(piece.piece) != "▁" + piece.piece.replace(" ", "▁"):
            piece.type = USER_DEFINED


def damage(error: Exception, where: str) -> ValueError:
    """Returns the error for a model that the library reports as damaged, such as a model of control pieces only."""
    return ValueError(f"{where}: the sentencepiece library cannot use this model: {' '.join(str(error).split())[:200]}")
