"""Folders of Hugging Face's `EncoderDecoderModel`: two members of the family in one file of weights (docs/generation.md).

The encoder has the names of a model without heads behind `encoder.`, the decoder those of a model for words behind
`decoder.`, with a second attention in each layer.
"""

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from official_bert.config import ModelConfig, build
from official_bert.models.encoder_decoder.model import DECODER, EncoderDecoder
from official_bert.models.interchange import stored_models
from official_bert.models.interchange.members.family import member_for, member_of
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
PROJECTION = "enc_to_dec_proj."
CROSS = {"query": "self.query", "key": "self.key", "value": "self.value", "output": "output.dense"}
# arguments of `generate`; older files have them in config.json
SEARCH_KEYS = (
    *("num_beams", "num_return_sequences", "max_length", "min_length", "max_new_tokens", "min_new_tokens"),
    *("length_penalty", "early_stopping", "no_repeat_ngram_size"),
    *("eos_token_id", "pad_token_id", "decoder_start_token_id"),
)
NOT_COMPUTED = {"do_sample": False, "repetition_penalty": 1.0, "num_beam_groups": 1, "diversity_penalty": 0.0}
# BERT without segments and pooler; its head is a product with the word table (Rothe et al. 2020).
BERT_GENERATION = Member(
    stems={"bert-generation": "BertGeneration"},
    prefix="bert.",
    encoder=(*tables("bert.", ("word_embeddings", "position_embeddings")), *layers("bert.encoder.layer.{i}.")),
    forms={"Encoder": Form(""), "Decoder": Form("pretraining", rows("masked_lm/output_bias", "lm_head.bias"))},
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
# tensors of one of both, by their names in a model of its own -> the usual names
Usual = Callable[[Mapping[str, np.ndarray], Member, ModelConfig, str], dict[str, np.ndarray]]
AsWeights = Callable[[Mapping[str, np.ndarray], Mapping[str, str], str], dict[str, np.ndarray]]


def _member_of(values: Mapping[str, Any], path: str) -> Member:
    own = values.get("model_type") == "bert-generation"
    return BERT_GENERATION if own else member_of(values, path)[0]


def _table(member: Member, decodes: bool) -> NameTable:
    """The names of an encoder, or of a decoder."""
    if not decodes:
        return member.table()
    theirs = f"{member.prefix}encoder.layer.{{i}}.crossattention."
    cross = [row for ours, part in CROSS.items() for row in dense(f"cross_{{i}}/attention/{ours}/", f"{theirs}{part}.")]
    return NameTable([*member.table().rows, *cross, *norm("cross_{i}/LayerNorm/", f"{theirs}output.LayerNorm.")])


def read(
    folder: str,
    values: Mapping[str, Any],
    path: str,
    tensors: Mapping[str, np.ndarray],
    usual: Usual,
    as_weights: AsWeights,
) -> dict[str, Any]:
    """Returns fields of the `StoredModel` of a folder with this config.json, at `path`, and these tensors.

    Raises ValueError for a decoder without the second attention, and for parts that are not computed here.
    """
    weights: dict[str, np.ndarray] = {}
    unknown: list[str] = []
    configs, their_table, is_shared = [], [], bool(values.get("tie_encoder_decoder"))
    for part in ("encoder", "decoder"):
        decodes, of_part = part == "decoder", values.get(part)
        if not isinstance(of_part, Mapping):
            raise ValueError(f"{path}: {part}: expected a configuration, got {of_part!r:.80}")
        if decodes and not (of_part.get("is_decoder") and of_part.get("add_cross_attention")):
            raise ValueError(
                f"{path}: decoder: expected is_decoder and add_cross_attention true, got "
                f"{of_part.get('is_decoder')!r:.20} and {of_part.get('add_cross_attention')!r:.20}"
            )
        known = {key: value for key, value in of_part.items() if key not in ("is_decoder", "add_cross_attention")}
        where = f"{path}: {part}"
        member = _member_of(known if decodes else of_part, where)
        config = build(ModelConfig, member.read_config(known if decodes else of_part, where), where)
        own = {name.removeprefix(f"{part}."): tensor for name, tensor in tensors.items() if name.startswith(f"{part}.")}
        table = _table(member, decodes)
        names, others = table.all_ours(own := usual(own, member, config, folder))
        front = DECODER if decodes else ""
        weights |= {f"{front}{ours}": weight for ours, weight in as_weights(own, names, folder).items()}
        unknown += [f"{part}.{name}" for name in others]
        their_table += [(f"{front}{ours}", f"{part}.{theirs}") for ours, theirs in table.rows]
        configs.append(config)
    their_table += dense(f"{DECODER}projection/", PROJECTION)
    if f"{PROJECTION}weight" in tensors:
        projection = {
            f"{DECODER}projection/kernel": f"{PROJECTION}weight",
            f"{DECODER}projection/bias": f"{PROJECTION}bias",
        }
        weights |= as_weights(tensors, projection, folder)
    encoder, decoder = configs
    of_encoder = {name: weight for name, weight in weights.items() if not name.startswith((DECODER, "pooler/"))}
    if is_shared:  # names that the file lacks are the encoder's
        weights = {**{f"{DECODER}{name}": weight for name, weight in of_encoder.items()}, **weights}
        is_shared = encoder == decoder and all(
            np.array_equal(weights[f"{DECODER}{name}"], weight) for name, weight in of_encoder.items()
        )
    if is_shared:
        weights = {
            name: weight
            for name, weight in weights.items()
            if name.removeprefix(DECODER) not in of_encoder or not name.startswith(DECODER)
        }
    search, remarks = _read_search(folder, values)
    options = {
        "generator": "decoder",
        "decoder": None if is_shared else dataclasses.asdict(decoder),
        "shared": is_shared,
        "head_transform": f"{DECODER}masked_lm/transform/kernel" in weights,
        "search": search,
    }
    return {
        "weights": weights,
        "table": NameTable(their_table),
        "config": encoder,
        "model_type": values["encoder"].get("model_type", ""),
        "head": "decoder",
        "unknown": unknown,
        "warnings": remarks,
        "objective_options": options,
    }


def _read_search(folder: str, values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Returns the arguments of `generate` in a folder's files, and remarks about those that are not computed here."""
    decoder = values["decoder"]
    given = {**values, **read_mapping(os.path.join(folder, SEARCH_FILE), missing={})}
    found = {key: given[key] for key in SEARCH_KEYS if given.get(key) is not None}
    for key in ("eos_token_id", "pad_token_id"):
        if key not in found and decoder.get(key) is not None:
            found[key] = decoder[key]
    if "decoder_start_token_id" not in found:
        start = given.get("bos_token_id", decoder.get("bos_token_id"))
        found |= {} if start is None else {"decoder_start_token_id": start}
    wrong = [key for key, usual in NOT_COMPUTED.items() if given.get(key, usual) not in (usual, None)]
    return found, [f"{key} {given[key]!r} is not computed here: texts are the likeliest ones" for key in wrong]


def make(encoder: Any, stored: StoredModel) -> EncoderDecoder:
    """Returns the model of an encoder and a stored decoder, without weights."""
    options = stored.objective_options
    decoder = None if options["shared"] else options["decoder"] or dataclasses.asdict(encoder.config)
    return EncoderDecoder(encoder, decoder, options["head_transform"], options["search"])


def write(
    stored: StoredModel, as_tensors: Callable[[Mapping[str, np.ndarray], NameTable], dict[str, np.ndarray]], pad_id: int
) -> tuple[dict[str, np.ndarray], dict[str, Any], dict[str, Any]]:
    """Returns the tensors, the `config.json` and the `generation_config.json` of a folder.

    Weights that both share are written twice, because transformers 5 does not read the flag that would say so.
    """
    options = stored.objective_options
    encoder = stored_models.require_config(stored)
    decoder = ModelConfig(**options["decoder"]) if options["decoder"] else encoder
    tensors: dict[str, np.ndarray] = {}
    values: dict[str, Any] = {"architectures": [ARCHITECTURE], "model_type": MODEL_TYPE, "is_encoder_decoder": True}
    for part, config in (("encoder", encoder), ("decoder", decoder)):
        decodes = part == "decoder"
        lacks_segments = not config.type_vocab_size and not BERT_GENERATION.differences(config)
        member, model_type = (
            (BERT_GENERATION, "bert-generation") if lacks_segments else member_for(config, stored.model_type)
        )
        if decodes and lacks_segments == options["head_transform"]:
            raise ValueError(
                f"no decoder of Hugging Face's {member.title} has this head for words; only --to=ours holds it"
            )
        weights = {
            name.removeprefix(DECODER): weight
            for name, weight in stored.weights.items()
            if name.startswith(DECODER) == decodes
        }
        if decodes and options["shared"]:
            weights |= {
                name: stored.weights[name] for name in stored.weights if not name.startswith((DECODER, "pooler/"))
            }
        projected = {name: weights.pop(name) for name in [*weights] if name.startswith("projection/")}
        if member is BERT_GENERATION:
            weights = {name: weight for name, weight in weights.items() if not name.startswith("pooler/")}
        table = _table(member, decodes)
        if not decodes:
            form = member.forms.get("Model", member.forms.get("Encoder"))
            table = NameTable([*member.encoder, *form.rows])
        named = as_tensors(weights, table)
        own = member.pack(
            {name if decodes else name.removeprefix(member.prefix): value for name, value in named.items()}, config
        )
        tensors |= {f"{part}.{name}": tensor for name, tensor in own.items()}
        tensors |= as_tensors(projected, NameTable(dense("projection/", PROJECTION)))
        values[part] = {"model_type": model_type, "pad_token_id": pad_id, "is_decoder": decodes}
        values[part] |= {"add_cross_attention": decodes, "tie_word_embeddings": True} | member.write_config(config)
    search = {key: value for key, value in options["search"].items() if key in SEARCH_KEYS and value is not None}
    ids = {key: value for key, value in search.items() if key.endswith("_token_id")}
    values |= {"tie_encoder_decoder": options["shared"], "vocab_size": decoder.vocab_size, **ids}
    return tensors, values, {"_from_model_config": False, **search}
