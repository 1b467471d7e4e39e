"""Folders of Hugging Face's `EncoderDecoderModel`: two members of the family in one file of weights.

The encoder's weights are named `encoder.` and then as in a model without head, the decoder's `decoder.` and then as in
a masked-LM model, with a second attention in each layer (docs/generation.md).
"""

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from official_bert.config import ModelConfig, build
from official_bert.models.encoder_decoder.model import DECODER, EncoderDecoder
from official_bert.models.interchange import stored_models
from official_bert.models.interchange.members import family
from official_bert.models.interchange.members.member import (
    USUAL_KEYS,
    Form,
    Member,
    dense,
    layers,
    norm,
    roberta_tied,
    tables,
)
from official_bert.models.interchange.names import NameTable, rows
from official_bert.models.interchange.stored_models import StoredModel
from official_bert.storage.files import read_mapping

MODEL_TYPE, ARCHITECTURE, SEARCH_FILE = "encoder-decoder", "EncoderDecoderModel", "generation_config.json"
PARTS = {"encoder": "", "decoder": DECODER}
PROJECTION = "enc_to_dec_proj."
CROSS = {"query": "self.query", "key": "self.key", "value": "self.value", "output": "output.dense"}
OF_DECODERS = {"is_decoder", "add_cross_attention"}  # keys
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
Weights = Mapping[str, np.ndarray]


def _table(member: Member, front: str) -> NameTable:
    """Returns the names of an encoder (`front` is empty) or of a decoder."""
    if not front:
        return member.table()
    theirs = f"{member.prefix}encoder.layer.{{i}}.crossattention."
    cross = [row for ours, part in CROSS.items() for row in dense(f"cross_{{i}}/attention/{ours}/", f"{theirs}{part}.")]
    more = [*norm("cross_{i}/LayerNorm/", f"{theirs}output.LayerNorm."), *dense("projection/", PROJECTION)]
    return NameTable([*member.table().rows, *cross, *more])


def read(
    folder: str, values: Mapping[str, Any], path: str, tensors: Weights, usual: Callable, as_weights: Callable
) -> dict[str, Any]:
    """Returns fields of the `StoredModel` of a folder with this config.json, at `path`, and these tensors.

    `usual` and `as_weights` are functions of `hugging_face`. Raises ValueError for a decoder without the second
    attention, and for unsupported parts.
    """
    weights, unknown, names, configs = dict[str, np.ndarray](), list[str](), list[tuple[str, str]](), []
    tensors = {name.replace(PROJECTION, f"decoder.{PROJECTION}"): tensor for name, tensor in tensors.items()}
    for part, front in PARTS.items():
        given, where = values.get(part), f"{path}: {part}"
        if not isinstance(given, Mapping) or (front and not all(map(given.get, OF_DECODERS))):
            more = f" with {' and '.join(sorted(OF_DECODERS))}" if front else ""
            raise ValueError(f"{where}: expected the configuration of a model{more}, got {given!r:.80}")
        given = {key: value for key, value in given.items() if not front or key not in OF_DECODERS}
        of_generation = given.get("model_type") in BERT_GENERATION.stems
        member = BERT_GENERATION if of_generation else family.member_of(given, where)[0]
        configs.append(build(ModelConfig, member.read_config(given, where), where))
        own = {name.removeprefix(f"{part}."): tensor for name, tensor in tensors.items() if name.startswith(f"{part}.")}
        own, table = usual(own, member, configs[-1], folder), _table(member, front)
        known, others = table.all_ours(own)
        weights |= {f"{front}{ours}": weight for ours, weight in as_weights(own, known, folder).items()}
        unknown += [f"{part}.{name}" for name in others]
        names += [(f"{front}{ours}", f"{part}.{theirs}") for ours, theirs in table.rows]
    is_shared = bool(values.get("tie_encoder_decoder"))
    if is_shared:  # names that the file lacks are the encoder's
        lent = {
            f"{DECODER}{name}": weight for name, weight in weights.items() if not name.startswith((DECODER, "pooler/"))
        }
        weights = lent | weights
        is_shared = configs[0] == configs[1] and all(np.array_equal(weights[name], lent[name]) for name in lent)
        weights = {name: weight for name, weight in weights.items() if not (is_shared and name in lent)}
    return {
        "weights": weights,
        "table": NameTable(names),
        "config": configs[0],
        "model_type": values["encoder"].get("model_type", ""),
        "head": "decoder",
        "unknown": unknown,
        "objective_options": {
            "generator": "decoder",
            "decoder": None if is_shared else dataclasses.asdict(configs[1]),
            "shared": is_shared,
            "head_transform": f"{DECODER}masked_lm/transform/kernel" in weights,
            "search": _read_search(folder, values),
        },
    }


def _read_search(folder: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of `generate` in a folder's files; of several files, the latest counts."""
    decoder = {key: value for key, value in values["decoder"].items() if key.endswith("_token_id")}
    found: dict[str, Any] = {}
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


def write(stored: StoredModel, as_tensors: Callable, pad_id: int) -> tuple[dict, dict, dict]:
    """Returns the tensors, the `config.json` and the `generation_config.json` of a folder.

    Weights that both parts share are written twice, because transformers 5 ignores the flag for sharing. Raises
    ValueError for a decoder that Hugging Face's classes lack.
    """
    options, encoder, tensors = stored.objective_options, stored_models.require_config(stored), dict[str, np.ndarray]()
    decoder = ModelConfig(**options["decoder"]) if options["decoder"] else encoder
    search = {key: value for key, value in options["search"].items() if key in SEARCH_KEYS and value is not None}
    ids = {key: value for key, value in search.items() if key.endswith("_token_id")}
    values = {"architectures": [ARCHITECTURE], "model_type": MODEL_TYPE, "is_encoder_decoder": True, **ids}
    values |= {"tie_encoder_decoder": options["shared"], "vocab_size": decoder.vocab_size}
    lent = {name: weight for name, weight in stored.weights.items() if not name.startswith((DECODER, "pooler/"))}
    for (part, front), config in zip(PARTS.items(), (encoder, decoder)):
        of_generation = not (config.type_vocab_size or BERT_GENERATION.differences(config))
        member, kind = BERT_GENERATION, "bert-generation"
        if not of_generation:
            member, kind = family.member_for(config, stored.model_type)
        computed = (family.BERT, family.ROBERTA) if options["head_transform"] else (BERT_GENERATION,)
        if front and member not in computed:
            raise ValueError(f"Hugging Face has no such decoder (nearest: {member.title}); only --to=ours can hold it")
        own = {
            name.removeprefix(DECODER): weight for name, weight in stored.weights.items() if name.startswith(DECODER)
        }
        own = ({**lent, **own} if options["shared"] else own) if front else dict(stored.weights)
        table = _table(member, front)
        named = as_tensors({name: weight for name, weight in own.items() if table.theirs(name)}, table)
        named = {name if front else name.removeprefix(member.prefix): tensor for name, tensor in named.items()}
        tensors |= {f"{part}.{name}": tensor for name, tensor in member.pack(named, config).items()}
        values[part] = {"model_type": kind, "pad_token_id": pad_id, "tie_word_embeddings": True}
        values[part] |= dict.fromkeys(OF_DECODERS, bool(front)) | member.write_config(config)
    return (
        {name.replace(f"decoder.{PROJECTION}", PROJECTION): tensor for name, tensor in tensors.items()},
        values,
        search,
    )
