"""Folders of Hugging Face's `EncoderDecoderModel`: two members of the family in one file of weights.

The encoder's weights are named `encoder.` and then as in a model without head, the decoder's `decoder.` and then as in
a masked-LM model, with a second attention in each layer (docs/generation.md).
"""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from official_bert.config import ModelConfig, build
from official_bert.models.encoder_decoder.model import DECODER, EncoderDecoder
from official_bert.models.interchange import stored_models
from official_bert.models.interchange.members import family
from official_bert.models.interchange.members.member import (
    USUAL_KEYS,
    Fields,
    Form,
    Member,
    Values,
    dense,
    layers,
    norm,
    roberta_tied,
    tables,
)
from official_bert.models.interchange.names import NameTable, Tensors, Weights, rows, with_prefix
from official_bert.models.interchange.projects.hugging_face_tensors import (
    as_tensors,
    as_weights,
    read_tensors,
    usual_tensors,
)
from official_bert.models.interchange.stored_models import StoredModel
from official_bert.storage.files import read_mapping

MODEL_TYPE, ARCHITECTURE, SEARCH_FILE = "encoder-decoder", "EncoderDecoderModel", "generation_config.json"
PARTS = {"encoder": "", "decoder": DECODER}
PROJECTION = "enc_to_dec_proj."
CROSS = {"query": "self.query", "key": "self.key", "value": "self.value", "output": "output.dense"}
OF_DECODERS = ("add_cross_attention", "is_decoder")  # keys
# arguments of `generate`; older files have them in config.json
SEARCH_KEYS = (
    *("num_beams", "num_return_sequences", "max_length", "min_length", "max_new_tokens", "min_new_tokens"),
    *("length_penalty", "early_stopping", "no_repeat_ngram_size"),
    *("eos_token_id", "pad_token_id", "decoder_start_token_id"),
)
# BERT without segments and pooler; its head is a product with the word table (Rothe et al. 2020).
BERT_GENERATION = Member(
    stems={"bert-generation": "BertGeneration"},
    prefix="bert.",
    encoder=(*tables("bert.", ("word_embeddings", "position_embeddings")), *layers("bert.encoder.layer.{i}.")),
    forms={"Decoder": Form("pretraining", rows("masked_lm/output_bias", "lm_head.bias"))},
    tied=roberta_tied("bert."),
    keys={ours: theirs for ours, theirs in USUAL_KEYS.items() if ours != "type_vocab_size"},
    fixed={"type_vocab_size": 0},
    defaults={
        "vocab_size": 50358,
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
    },
)


def _table(member: Member, front: str) -> NameTable:
    """Returns the names of an encoder (`front` is empty) or of a decoder."""
    if not front:
        return member.table()
    theirs = f"{member.prefix}encoder.layer.{{i}}.crossattention."
    cross = [row for ours, part in CROSS.items() for row in dense(f"cross_{{i}}/attention/{ours}/", f"{theirs}{part}.")]
    more = [*norm("cross_{i}/LayerNorm/", f"{theirs}output.LayerNorm."), *dense("projection/", PROJECTION)]
    return NameTable([*member.table().rows, *cross, *more])


def read(folder: str, values: Values, path: str) -> Fields:
    """Returns fields of the `StoredModel` of a folder with this config.json, at `path`.

    Raises ValueError for a decoder without the second attention, and for unsupported parts.
    """
    tensors = {
        name.replace(PROJECTION, f"decoder.{PROJECTION}"): tensor for name, tensor in read_tensors(folder).items()
    }
    encoder, decoder = (_read_part(part, values.get(part), tensors, folder, f"{path}: {part}") for part in PARTS)
    weights = encoder.weights | decoder.weights
    is_shared = bool(values.get("tie_encoder_decoder"))
    if is_shared:  # names that the file lacks are the encoder's
        lent = _lent(weights)
        weights = lent | weights
        is_shared = encoder.config == decoder.config and all(
            np.array_equal(weights[name], weight) for name, weight in lent.items()
        )
        weights = {name: weight for name, weight in weights.items() if not (is_shared and name in lent)}
    return {
        "weights": weights,
        "table": NameTable([*encoder.rows, *decoder.rows]),
        "config": encoder.config,
        "model_type": values["encoder"].get("model_type", ""),
        "head": "decoder",
        "unknown": [*encoder.unknown, *decoder.unknown],
        "objective_options": {
            "generator": "decoder",
            "decoder": None if is_shared else dataclasses.asdict(decoder.config),
            "shared": is_shared,
            "head_transform": f"{DECODER}masked_lm/transform/kernel" in weights,
            "search": _read_search(folder, values),
        },
    }


class _Part(NamedTuple):
    """The encoder or the decoder of a folder."""

    config: ModelConfig
    weights: Tensors  # by our names
    rows: list[tuple[str, str]]  # of the table of their names
    unknown: list[str]


def _read_part(part: str, values: Any, tensors: Weights, folder: str, where: str) -> _Part:
    """Returns the part with these `values` in the folder's config.json."""
    front = PARTS[part]
    if not isinstance(values, Mapping) or (front and not all(map(values.get, OF_DECODERS))):
        more = f" with {' and '.join(OF_DECODERS)}" if front else ""
        raise ValueError(f"{where}: expected the configuration of a model{more}, got {values!r:.80}")
    values = {key: value for key, value in values.items() if not front or key not in OF_DECODERS}
    of_generation = str(values.get("model_type")) in BERT_GENERATION.stems
    member = BERT_GENERATION if of_generation else family.member_of(values, where)[0]
    config = build(ModelConfig, member.read_config(values, where), where)
    own = {name.removeprefix(f"{part}."): tensor for name, tensor in with_prefix(tensors, f"{part}.").items()}
    own, table = usual_tensors(own, member, config, folder), _table(member, front)
    names, unknown = table.all_ours(own)
    return _Part(
        config,
        {f"{front}{ours}": weight for ours, weight in as_weights(own, names, folder).items()},
        [(f"{front}{ours}", f"{part}.{theirs}") for ours, theirs in table.rows],
        [f"{part}.{name}" for name in unknown],
    )


def _lent(weights: Weights) -> Tensors:
    """Returns the weights that a decoder shares with the encoder, under the decoder's names."""
    return {f"{DECODER}{name}": weight for name, weight in weights.items() if not name.startswith((DECODER, "pooler/"))}


def _read_search(folder: str, values: Values) -> Fields:
    """Returns the arguments of `generate` in a folder's files; of several files, the latest counts."""
    decoder = {key: value for key, value in values["decoder"].items() if key.endswith("_token_id")}
    found: Fields = {}
    for given in (decoder, values, read_mapping(os.path.join(folder, SEARCH_FILE), missing={})):
        said = {key: value for key, value in given.items() if value is not None}
        starts = {"decoder_start_token_id": said["bos_token_id"]} if "bos_token_id" in said else {}
        found = starts | found | {key: said[key] for key in SEARCH_KEYS if key in said}
    return found | {"eos_token_id": np.ravel(found.get("eos_token_id", ())).tolist()}


def make(encoder: Any, stored: StoredModel) -> EncoderDecoder:
    """Returns the model of an encoder and a stored decoder, without its weights."""
    options = stored.objective_options
    decoder = None if options["shared"] else options["decoder"] or dataclasses.asdict(encoder.config)
    return EncoderDecoder(encoder, decoder, options["head_transform"], options["search"])


def write(stored: StoredModel, pad_id: int) -> tuple[Tensors, Fields, Fields]:
    """Returns the tensors, the `config.json` and the `generation_config.json` of a folder.

    Weights that both parts share are written twice, because transformers 5 ignores the flag for sharing. Raises
    ValueError for a decoder that Hugging Face's classes lack.
    """
    options, encoder = stored.objective_options, stored_models.require_config(stored)
    decoder = ModelConfig(**options["decoder"]) if options["decoder"] else encoder
    search = {key: value for key, value in options["search"].items() if key in SEARCH_KEYS and value is not None}
    ids = {key: value for key, value in search.items() if key.endswith("_token_id")}
    values: Fields = {"architectures": [ARCHITECTURE], "model_type": MODEL_TYPE, "is_encoder_decoder": True, **ids}
    values |= {"tie_encoder_decoder": options["shared"], "vocab_size": decoder.vocab_size}
    tensors: Tensors = {}
    for part, config in zip(PARTS, (encoder, decoder)):
        own, values[part] = _part_of(stored, part, config, pad_id)
        tensors |= {f"{part}.{name}".replace(f"decoder.{PROJECTION}", PROJECTION): own[name] for name in own}
    return tensors, values, search


def _part_of(stored: StoredModel, part: str, config: ModelConfig, pad_id: int) -> tuple[Tensors, Fields]:
    """Returns the tensors and the configuration of the encoder or the decoder of a model."""
    front, options = PARTS[part], stored.objective_options
    member, model_type = BERT_GENERATION, "bert-generation"
    if config.type_vocab_size or member.differences(config):
        member, model_type = family.member_for(config, stored.model_type)
    computed = (family.BERT, family.ROBERTA) if options["head_transform"] else (BERT_GENERATION,)
    if front and member not in computed:
        raise ValueError(f"Hugging Face has no such decoder (nearest: {member.title}); only --to=ours can hold it")
    own = stored.weights
    if front:
        own = (_lent(own) if options["shared"] else {}) | with_prefix(own, DECODER)
    own = {name.removeprefix(front): weight for name, weight in own.items()}
    table, prefix = _table(member, front), "" if front else member.prefix
    tensors = as_tensors({name: weight for name, weight in own.items() if table.theirs(name)}, table)
    values = {"model_type": model_type, "pad_token_id": pad_id, "tie_word_embeddings": True}
    values |= dict.fromkeys(OF_DECODERS, bool(front)) | member.write_config(config)
    return member.pack({name.removeprefix(prefix): tensor for name, tensor in tensors.items()}, config), values
