"""Writes the files of a Hugging Face folder beside a model of another runtime, for third-party programs.

These are `tokenizer.json` for `tokenizers`, `config.json` with sizes and labels and, for embeddings, the modules of
sentence-transformers with pooling and prompts. A file that cannot describe the model is left out.
"""

import contextlib
import dataclasses
import os
from typing import Any

from official_bert.config import Config
from official_bert.models.interchange import stored_models
from official_bert.models.interchange.members.family import member_for
from official_bert.models.interchange.projects import hugging_face_tokenizers, ours, sentence_transformers
from official_bert.models.interchange.stored_models import StoredModel
from official_bert.models.vector_layers import vector_width
from official_bert.serving.served_embeddings import ServedEmbeddings
from official_bert.serving.served_model import ServedModel
from official_bert.text import loading
from official_bert.text.subwords import tokenizer_files
from official_bert.text.tokenization import MAX_WORD_LENGTH
from official_bert.text.vocab import SPECIAL_TOKENS

TOKENIZER_FILE, CONFIG_FILE = "tokenizer.json", "config.json"


def write_companions(served: ServedModel, config: Config, folder: str) -> None:
    """Writes the Hugging Face files into a model's folder."""
    stored = StoredModel(
        origin="this model",
        weights={},
        table=ours.TABLE,
        config=config.model,
        do_lower_case=bool(served.tokenizer.do_lower_case),
        labels=served.labels,
    )
    _write_tokenizer(served, stored, folder)
    with contextlib.suppress(ValueError):  # an architecture that has no name there
        _write_config(served, stored, folder)
    if isinstance(served, ServedEmbeddings) and not served.layers:
        width = vector_width(config.model.hidden_size, served.pooling, ())
        vectors = dataclasses.replace(
            stored,
            pooling=served.pooling,
            normalize=served.normalize,
            prompts=served.prompts,
            default_prompt=served.default_prompt,
            include_prompt=served.include_prompt,
            longest_text=served.max_seq_length,
            dimensions=served.dimensions if served.dimensions < width else 0,
        )
        sentence_transformers.write_modules(vectors, config.model.hidden_size, folder)


def _write_config(served: ServedModel, stored: StoredModel, folder: str) -> None:
    """Writes sizes and labels. Raises ValueError for a model that Hugging Face's classes cannot compute."""
    size = stored_models.require_config(stored)
    stored_models.refuse_architecture(size, "Hugging Face's BERT")
    member, model_type = member_for(size, stored.model_type)
    labels = {
        "id2label": {str(index): label for index, label in enumerate(served.labels)},
        "label2id": {label: index for index, label in enumerate(served.labels)},
    }
    stored_models.write_mapping(
        {"model_type": model_type, "pad_token_id": int(served.special["PAD"])}
        | member.write_config(size)
        | (labels if served.labels else {}),
        os.path.join(folder, CONFIG_FILE),
    )


def _write_tokenizer(served: ServedModel, stored: StoredModel, folder: str) -> None:
    """Writes `tokenizer.json`, or a copy of the tokenizer's files if it is not WordPiece."""
    vocab_file = served.tokenizer.vocab_file
    if tokenizer_files.is_subwords(vocab_file):
        tokenizer_files.write_files(tokenizer_files.read(vocab_file), folder)
        return
    hugging_face_tokenizers.write(stored, served.max_seq_length, folder)
    stored_models.write_mapping(
        word_pieces(loading.entries(vocab_file), bool(stored.do_lower_case), served.max_seq_length),
        os.path.join(folder, TOKENIZER_FILE),
    )


def word_pieces(vocab: Any, lower_case: bool, length: int) -> dict[str, Any]:
    """Returns the `tokenizer.json` of the 2018 tokenizer, for rows [CLS] A [SEP] or [CLS] A [SEP] B [SEP].

    Rows are truncated to `length` tokens.
    """

    def special(token: str, segment: int) -> dict[str, Any]:
        return {"SpecialToken": {"id": token, "type_id": segment}}

    def text(name: str, segment: int) -> dict[str, Any]:
        return {"Sequence": {"id": name, "type_id": segment}}

    single = [special("[CLS]", 0), text("A", 0), special("[SEP]", 0)]
    return {
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": length, "strategy": "LongestFirst", "stride": 0},
        "padding": None,
        "added_tokens": [
            {
                "id": vocab[token],
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for token in sorted(SPECIAL_TOKENS, key=lambda token: vocab[token])
        ],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": lower_case,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": single,
            "pair": [*single, text("B", 1), special("[SEP]", 1)],
            "special_tokens": {
                token: {"id": token, "ids": [vocab[token]], "tokens": [token]} for token in ("[CLS]", "[SEP]")
            },
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": MAX_WORD_LENGTH,
            "vocab": dict(vocab),
        },
    }
