"""Reads adapter folders of Hugging Face's PEFT (LoRA) over their base, and writes them, without PEFT."""

import dataclasses
import os
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from safetensors.numpy import save_file

from official_bert.limits import MOST_PATTERNS, MOST_SIZE, require_at_most
from official_bert.model_config import ModelConfig
from official_bert.models.interchange import stored_models
from official_bert.models.interchange.adapted_models import adapted
from official_bert.models.interchange.adapted_models.adapted import Modules
from official_bert.models.interchange.adapted_models.merging import RESIDUAL_STARTS, Change, Scale
from official_bert.models.interchange.members.family import member_for
from official_bert.models.interchange.members.member import Form, Member, Values
from official_bert.models.interchange.names import NameTable, Tensors, Weights, as_matrix
from official_bert.models.interchange.projects.hugging_face_tensors import (
    READERS,
    WEIGHT_TYPES,
    as_tensors,
    as_weights,
)
from official_bert.models.interchange.stored_models import Adapters, LowRank, StoredModel
from official_bert.storage.files import read_mapping

NAME = "PEFT folder"
CONFIG_FILE, WEIGHTS_FILE, TORCH_FILE = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
PREFIX = "base_model.model."
HEADS = {"SEQ_CLS": "classifier", "TOKEN_CLS": "tagger", "QUESTION_ANS": "span", "FEATURE_EXTRACTION": ""}
# Keys that are read, that the tensors say too, or that only training and first values depend on. Others must be empty.
KNOWN = {
    "peft_type",
    "task_type",
    "r",
    "lora_alpha",
    "use_rslora",
    "rank_pattern",
    "alpha_pattern",
    "bias",
    "use_dora",
    "lora_bias",
    "target_modules",
    "exclude_modules",
    "modules_to_save",
    "layers_to_transform",
    "layers_pattern",
    "base_model_name_or_path",
    "revision",
    "auto_mapping",
    "peft_version",
    "inference_mode",
    "lora_dropout",
    "init_lora_weights",
    "loftq_config",
    "eva_config",
    "corda_config",
    "lora_ga_config",
    "megatron_core",
    "qalora_group_size",
    "runtime_config",
}
PLAIN_STARTS = (True, False, None, "gaussian", "eva", "orthogonal")  # first values that leave the base as it is
LOST_BIASES = "bias lora_only, but no such bias: PEFT 0.19 and older trained them and did not save them"
COPY = re.compile(r"\.modules_to_save(\.default)?\.")  # of a module that is saved whole
PART = re.compile(
    r"(?P<module>.+)\.lora_(?P<part>A\.weight|B\.weight|B\.bias|magnitude_vector|embedding_[AB])(\.weight)?"
)


def read(folder: str, base: StoredModel) -> StoredModel:
    """Returns the model of an adapter on its base, with the products merged into the kernels.

    Raises ValueError for unsupported adapters, for tensors that do not fit the base, and, with the names, for weights
    that neither adapter nor base has.
    """
    path = os.path.join(folder, CONFIG_FILE)
    config = read_mapping(path)
    _check_config(config, path)
    model = stored_models.require_config(base)
    member, _ = member_for(model, base.model_type)
    low_rank, plain = _sorted_tensors(_read_tensors(folder), member, folder)
    form = _form_of(config, base, plain, member, path)
    table = NameTable([*member.encoder, *form.rows])
    weights = _weights_of_base(base, member, table)
    tensors = member.unpack(plain, model)
    names, unknown = table.all_ours(tensors)
    if unknown:
        raise ValueError(f"{folder}: {unknown[0]}: no weight of {base.origin}")
    weights |= as_weights(tensors, names, folder)
    lacking = next((theirs for ours, theirs in form.rows if form.head and ours not in weights), None)
    if lacking:
        raise ValueError(f"{folder}: {lacking} is neither in the base, {base.origin}, nor in the adapter")
    modules = adapted.modules(model, member, table)
    of_head = _products_of_head(form, weights, modules)
    _check_shapes(names, weights, tensors, base, folder)
    change = Change(weights, modules | of_head, table, folder, config.get("init_lora_weights", True))
    for module, parts in low_rank.items():
        change.add(module, parts, _scale(config, module, member, form, path))
    merged_products = [name for (name,) in of_head.values() if name in change.products]
    has_head_of_base = form.head == base.head and f"{form.head}/output_bias" not in names  # else its classes are others
    lacks_biases = model.biases and not any(f"{module}.bias" in plain for module in low_rank)
    return dataclasses.replace(
        base,
        origin=f"{NAME} {folder} on {base.origin}",
        weights=adapted.merged(weights, change.products),
        table=table,
        head=form.head,
        unknown=(),
        warnings=[*base.warnings, *([LOST_BIASES] if config.get("bias") == "lora_only" and lacks_biases else [])],
        labels=base.labels if has_head_of_base else (),
        kind=base.kind if has_head_of_base else "",
        adapters=Adapters(
            {name: product for name, product in change.products.items() if name not in merged_products},
            (*names, *change.replaced, *(f"{name}/kernel" for name in merged_products)),
            base.folder or base.origin,
        ),
    )


def _products_of_head(form: Form, weights: Weights, modules: Modules) -> Modules:
    """Returns the products of a class's head beside those of the encoder, as `adapted.modules` gives these."""
    return {
        module: {ours.removesuffix("/kernel"): np.arange(weights[ours].shape[1])}
        for ours, theirs in form.rows
        if ours.endswith("/kernel") and ours in weights and (module := theirs.removesuffix(".weight")) not in modules
    }


def _check_shapes(names: Mapping[str, str], weights: Weights, tensors: Weights, base: StoredModel, folder: str) -> None:
    """Raises ValueError unless the weights with these `names` have the shapes of the base's."""
    for ours, theirs in names.items():
        if ours in base.weights and not ours.startswith((*stored_models.HEAD_PREFIXES, "pooler/")):
            expected = as_matrix(ours, base.weights[ours]).shape
            if as_matrix(ours, weights[ours]).shape != expected:
                raise ValueError(
                    f"{folder}: {theirs}: expected the shape of the base's weight, {list(expected[::-1])}, "
                    f"got {list(tensors[theirs].shape)}"
                )


def _check_config(config: Values, path: str) -> None:
    if (kind := config.get("peft_type", "LORA")) != "LORA":
        raise ValueError(f"{path}: peft_type: {kind!r:.80} is not supported; expected 'LORA'")
    if wrong := next(
        (
            key
            for key, value in config.items()
            if key not in KNOWN and value not in (None, False, {}, []) and key != "fan_in_fan_out"
        ),
        "fan_in_fan_out" if config.get("fan_in_fan_out") else "",
    ):
        raise ValueError(f"{path}: {wrong}: {config[wrong]!r:.80} is not supported; expected none")
    patterns = _mapping(config, "alpha_pattern", path)
    require_at_most(MOST_PATTERNS, len(patterns), "patterns", f"{path}: alpha_pattern")
    for key, alpha in (("lora_alpha", config.get("lora_alpha", 8)), *patterns.items()):
        if type(alpha) not in (int, float) or not abs(alpha) < 2**31:
            raise ValueError(f"{path}: {key:.80}: expected a number below 2^31, got {alpha!r:.80}")
    for key, rank in (("r", config.get("r", 8)), *_mapping(config, "rank_pattern", path).items()):
        if type(rank) is not int or not 0 < rank <= MOST_SIZE:
            raise ValueError(f"{path}: {key:.80}: expected a rank from 1 to {MOST_SIZE:,}, got {rank!r:.80}")
    start = config.get("init_lora_weights", True)
    if start not in (*PLAIN_STARTS, *RESIDUAL_STARTS):
        raise ValueError(
            f"{path}: init_lora_weights: {start!r:.80} changes the base by numbers that the adapter does not have; "
            f"expected {', '.join(map(str, (*PLAIN_STARTS, *RESIDUAL_STARTS)))}, as PEFT writes if it converts"
        )


def _mapping(config: Values, key: str, path: str) -> Values:
    if not isinstance(values := config.get(key) or {}, dict):
        raise ValueError(f"{path}: {key}: expected a mapping, got {values!r:.80}")
    return values


def _read_tensors(folder: str) -> Tensors:
    for file, like in ((WEIGHTS_FILE, "model.safetensors"), (TORCH_FILE, "pytorch_model.bin")):
        if os.path.exists(path := os.path.join(folder, file)):
            tensors = READERS[like](path)
            for name, tensor in tensors.items():
                if tensor.dtype.name not in WEIGHT_TYPES:
                    raise ValueError(f"{path}: {name}: expected floating-point numbers, got {tensor.dtype}")
            return {name: tensor.astype(np.float32, copy=False) for name, tensor in tensors.items()}
    contents = ", ".join(sorted(os.listdir(folder))[:8])
    raise ValueError(f"{folder}: expected {WEIGHTS_FILE} or {TORCH_FILE}, got {contents}")


def _sorted_tensors(tensors: Weights, member: Member, folder: str) -> tuple[dict[str, Tensors], Tensors]:
    """Returns adapters' tensors, by module and part, and whole weights, named as in classes with heads. Raises
    ValueError for unsupported tensors, and for two of one name.
    """
    low_rank: dict[str, Tensors] = {}
    plain: Tensors = {}
    # with bias "all", modules that are saved whole have biases of two names: those of copies come last
    for full_name in sorted(tensors, key=lambda name: COPY.search(name) is not None):
        if ".original_module." in full_name:
            continue
        tensor, name = tensors[full_name], COPY.sub(".", full_name.removeprefix(PREFIX).replace(".base_layer.", "."))
        if match := PART.fullmatch(name):
            module = member.usual_name(f"{match['module']}.weight").removesuffix(".weight")
            known = low_rank.setdefault(module, {}).setdefault(match["part"], tensor)
        elif "lora_" in name:
            raise ValueError(f"{folder}: {full_name}: not supported")
        else:
            known = plain.setdefault(member.usual_name(name), tensor)
        if known is not tensor and not COPY.search(full_name):
            raise ValueError(f"{folder}: {full_name}: another tensor has the same name")
    return low_rank, plain


def _form_of(config: Values, base: StoredModel, plain: Weights, member: Member, path: str) -> Form:
    """Returns the class for which an adapter was trained: that of its task, of its head, or of its base."""
    task = config.get("task_type")
    if task not in (*HEADS, None):
        raise ValueError(f"{path}: task_type: {task!r:.80} is not supported; expected one of {', '.join(HEADS)}")
    head = HEADS[task] if task else stored_models.head_of(member.table().all_ours(plain)[0], path) or base.head
    forms = [form for form in member.forms.values() if form.head == head]
    if not forms:
        raise ValueError(f"{path}: task_type: {member.title} has no class for {task}")
    if head == base.head:
        return member.form_of(base.head, base.weights)[1]
    return forms[0]


def _weights_of_base(base: StoredModel, member: Member, table: NameTable) -> Tensors:
    """Returns the base's weights that the adapter's class has too. (RoBERTa's pooler belongs to its classifier.)"""
    own = member.table(member.form_of(base.head, base.weights)[1])
    return {name: weight for name, weight in base.weights.items() if table.theirs(name) == own.theirs(name) is not None}


def _scale(config: Values, module: str, member: Member, form: Form, path: str) -> Scale:
    """Returns a function from a rank to the scale factor of a module's product."""
    name = module if form.head else module.removeprefix(member.prefix)
    alpha = next(
        (value for pattern, value in (config.get("alpha_pattern") or {}).items() if _means(pattern, name, path)),
        config.get("lora_alpha", 8),
    )
    return lambda rank: alpha / (rank**0.5 if config.get("use_rslora") else rank)


def _means(pattern: str, name: str, path: str) -> bool:
    """Returns whether a pattern matches a module, by PEFT's rule. RE2 takes linear time, unlike Python's module re."""
    try:
        return bool(tf.strings.regex_full_match(name, rf"(.*\.)?({pattern})"))
    except tf.errors.InvalidArgumentError:
        raise ValueError(f"{path}: alpha_pattern: expected a pattern of RE2, got {pattern!r:.80}") from None


def write(stored: StoredModel, folder: str) -> list[str]:
    """Writes a model's adapters and its weights that differ from the base; returns the names of weights left out.
    Raises ValueError for a model without adapters.
    """
    if stored.adapters is None:
        raise ValueError(f"{stored.origin}: expected a run with training.adapters, or a PEFT folder, for --to=peft")
    config, adapters = stored_models.require_config(stored), stored.adapters
    member, _ = member_for(config, stored.model_type)
    head = "" if stored.head == "pretraining" else stored.head
    weights = {
        name: weight
        for name, weight in stored.weights.items()
        if head or not name.startswith((*stored_models.HEAD_PREFIXES, "boundary/"))
    }
    _, form = member.form_of(head, weights)
    table = NameTable([*member.encoder, *form.rows])
    whole = {name for name in _replaced(adapters, form, member) if name in weights and table.theirs(name)}
    products = _module_products(adapters.products, config, adapted.modules(config, member, table), weights, whole)
    tensors = {f"{module}.lora_A.weight": product.down.T for module, product in products.items()}
    tensors |= {f"{module}.lora_B.weight": product.up.T for module, product in products.items()}
    saved, biases = _whole_tensors(config, whole, weights, table, member, tensors)
    prefix = "" if head else member.prefix
    save_file(
        {
            PREFIX + name.removeprefix(prefix): np.ascontiguousarray(tensor, np.float32)
            for name, tensor in {**tensors, **saved}.items()
        },
        os.path.join(folder, WEIGHTS_FILE),
        metadata={"format": "pt"},
    )
    stored_models.write_mapping(
        {
            "peft_type": "LORA",
            "task_type": next((task for task, name in HEADS.items() if name == head), None),
            "base_model_name_or_path": adapters.base,
        }
        | _ranks({module.removeprefix(prefix): product for module, product in products.items()})
        | {
            "modules_to_save": _saved_modules(saved.keys() - biases, member, prefix) or None,
            "bias": _kind_of_biases(biases),
            "lora_dropout": 0.0,
            "fan_in_fan_out": False,
            "inference_mode": True,
        },
        folder,
        CONFIG_FILE,
    )
    return [name for name in adapters.replaced if name not in whole]


def _replaced(adapters: Adapters, form: Form, member: Member) -> set[str]:
    """Returns our names of the weights that are saved whole: those of the head, and those that replace the base's."""
    of_head = {ours for ours, theirs in form.rows if form.head and not theirs.startswith(member.prefix)}
    return of_head.union(adapters.replaced)


def _module_products(
    adapters: Mapping[str, LowRank], config: ModelConfig, modules: Modules, weights: Weights, whole: Collection[str]
) -> dict[str, LowRank]:
    """Returns the product of each of Hugging Face's modules, from those of ours that are not saved as `whole` weights.

    PEFT refuses an adapter without any product: one of zeros then stands for it.
    """
    free = [name for names in modules.values() for name in names if f"{name}/kernel" not in whole]
    products = {name: adapters[name] for name in free if name in adapters}
    if not products:
        kernel = as_matrix(f"{free[0]}/kernel", weights[f"{free[0]}/kernel"])
        products = {free[0]: LowRank(np.zeros((len(kernel), 1)), np.zeros((1, kernel.shape[1])), 1.0)}
    joined = {}
    for module, names in modules.items():
        parts = [products.get(name) for name in names]
        if any(parts):
            units = [adapted.outputs_of(name, config) for name in names]
            product = _joined(parts, units)
            firsts = np.cumsum([0, *units])
            order = np.concatenate([first + outputs for first, outputs in zip(firsts, names.values())])
            joined[module] = dataclasses.replace(product, up=product.up[:, order])
    return joined


def _ranks(products: Mapping[str, LowRank]) -> dict[str, Any]:
    """Returns the keys of `adapter_config.json` that say where products are, with which rank and which alpha."""
    ranks = {name: product.down.shape[1] for name, product in products.items()}
    alphas = {name: product.scale * ranks[name] for name, product in products.items()}
    rank, alpha = (next(iter(values.values()), 8) for values in (ranks, alphas))
    return {
        "r": rank,
        "lora_alpha": alpha,
        "use_rslora": False,
        "target_modules": sorted(ranks),
        "rank_pattern": {name: value for name, value in ranks.items() if value != rank},
        "alpha_pattern": {name: value for name, value in alphas.items() if value != alpha},
    }


def _whole_tensors(
    config: ModelConfig, whole: set[str], weights: Weights, table: NameTable, member: Member, tensors: Collection[str]
) -> tuple[Tensors, set[str]]:
    """Returns the tensors of whole weights by their names, and the names of those that are biases without a kernel."""
    named = {name: weight for name, weight in weights.items() if table.theirs(name)}
    theirs = member.pack(as_tensors(named, table), config)
    marks = {table.theirs(name) or "": np.full((6, 1), name in whole) for name in named}  # halves and thirds have some
    marked = member.pack(marks, config)
    names = {name for name, rows in marked.items() if rows.any()}
    modules = {name.removesuffix(".weight") for name in names if name.endswith(".weight")}
    biases = {name for name in names if name.endswith(".bias") and name.removesuffix(".bias") not in modules}
    names |= {f"{module}.bias" for module in modules if f"{module}.bias" in theirs}

    def saved_name(name: str) -> str:
        stem = name.removesuffix(".bias")
        return f"{stem}.base_layer.bias" if name in biases and f"{stem}.lora_A.weight" in tensors else name

    return {saved_name(name): theirs[name] for name in names}, {saved_name(name) for name in biases}


def _saved_modules(names: Collection[str], member: Member, prefix: str) -> list[str]:
    """Returns the modules of the tensors that are saved whole, without this `prefix`."""
    modules = {name.rpartition(".")[0] for name in names}
    return sorted(
        {name.removeprefix(prefix) if name.startswith(member.prefix) else name.partition(".")[0] for name in modules}
    )


def _kind_of_biases(biases: set[str]) -> str:
    if not biases:
        return "none"
    return "lora_only" if all(name.endswith(".base_layer.bias") for name in biases) else "all"


def _joined(parts: Sequence[LowRank | None], units: Sequence[int]) -> LowRank:
    """Returns one product for several adjacent ones with these numbers of outputs. It has their A if they share it,
    else all of theirs joined.
    """
    present = [part for part in parts if part is not None]
    first, downs = present[0], [part.down for part in present]
    if len(present) == len(parts) and all(
        np.array_equal(part.down, first.down) and part.scale == first.scale for part in present
    ):
        return LowRank(first.down, np.concatenate([part.up for part in present], axis=1), first.scale)
    up = np.zeros((sum(down.shape[1] for down in downs), sum(units)), np.float32)
    row = column = 0
    for part, count in zip(parts, units):
        if part is not None:
            up[row : row + len(part.up), column : column + count] = part.scale * part.up
            row += len(part.up)
        column += count
    return LowRank(np.concatenate(downs, axis=1), up, 1.0)
