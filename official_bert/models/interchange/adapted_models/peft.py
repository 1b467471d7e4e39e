"""Reads adapter folders of Hugging Face's PEFT (LoRA) over their base, and writes them, without PEFT."""

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from safetensors.numpy import save_file

from official_bert.limits import MOST_PATTERNS, MOST_SIZE, require_at_most
from official_bert.models.interchange import stored_models
from official_bert.models.interchange.adapted_models import adapted
from official_bert.models.interchange.members.family import member_for
from official_bert.models.interchange.members.member import Form, Member
from official_bert.models.interchange.names import NameTable, as_matrix
from official_bert.models.interchange.projects import hugging_face
from official_bert.models.interchange.stored_models import Adapters, LowRank, StoredModel
from official_bert.models.interchange.weight_files import torch_pickle
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
# First values that leave the base as it is. Two others take the adapter's first product out of it.
PLAIN_STARTS, RESIDUAL_STARTS = (True, False, None, "gaussian", "eva", "orthogonal"), ("pissa", "olora")
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
    unpacked = member.unpack(plain, model)
    names, unknown = table.all_ours(unpacked)
    if unknown:
        raise ValueError(f"{folder}: {unknown[0]}: no weight of {base.origin}")
    weights |= {
        ours: unpacked[theirs].T if ours.endswith("/kernel") else unpacked[theirs] for ours, theirs in names.items()
    }
    lacking = next((theirs for ours, theirs in form.rows if form.head and ours not in weights), None)
    if lacking:
        raise ValueError(f"{folder}: {lacking} is neither in the base, {base.origin}, nor in the adapter")
    modules = adapted.modules(model, member, table)
    of_head = {
        theirs.removesuffix(".weight"): {
            ours.removesuffix("/kernel"): np.arange(as_matrix(ours, weights[ours]).shape[1])
        }
        for ours, theirs in form.rows
        if ours.endswith("/kernel") and ours in weights and theirs.removesuffix(".weight") not in modules
    }
    for ours, theirs in names.items():
        if ours in base.weights and not ours.startswith((*stored_models.HEAD_PREFIXES, "pooler/")):
            expected = as_matrix(ours, base.weights[ours]).shape
            if as_matrix(ours, weights[ours]).shape != expected:
                raise ValueError(
                    f"{folder}: {theirs}: expected the shape of the base's weight, {list(expected[::-1])}, "
                    f"got {list(unpacked[theirs].shape)}"
                )
    change = _Change(weights, modules | of_head, table, folder, config.get("init_lora_weights", True))
    for module, parts in low_rank.items():
        change.add(module, parts, _scale(config, module, member, form, path))
    has_head_of_base = form.head == base.head and f"{form.head}/output_bias" not in names  # else its classes are others
    lacks_biases = model.biases and not any(f"{module}.bias" in plain for module in low_rank)
    warnings = [*base.warnings, *_warnings(config, lacks_biases)]
    merged_products = [name for (name,) in of_head.values() if name in change.products]
    return dataclasses.replace(
        base,
        origin=f"{NAME} {folder} on {base.origin}",
        weights=adapted.merged(weights, change.products),
        table=table,
        head=form.head,
        unknown=(),
        warnings=warnings,
        labels=base.labels if has_head_of_base else (),
        kind=base.kind if has_head_of_base else "",
        adapters=Adapters(
            {name: product for name, product in change.products.items() if name not in merged_products},
            (*names, *change.replaced, *(f"{name}/kernel" for name in merged_products)),
            base.folder or base.origin,
        ),
    )


def _check_config(config: Mapping[str, Any], path: str) -> None:
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


def _mapping(config: Mapping[str, Any], key: str, path: str) -> Mapping[str, Any]:
    if not isinstance(values := config.get(key) or {}, dict):
        raise ValueError(f"{path}: {key}: expected a mapping, got {values!r:.80}")
    return values


def _warnings(config: Mapping[str, Any], lacks_biases: bool) -> list[str]:
    if config.get("bias") == "lora_only" and lacks_biases:
        return ["bias lora_only, but no such bias: PEFT 0.19 and older trained them and did not save them"]
    return []


def _read_tensors(folder: str) -> Mapping[str, np.ndarray]:
    for name, load in (
        (WEIGHTS_FILE, lambda path: stored_models.read_safetensors(path)[0]),
        (TORCH_FILE, torch_pickle.load_tensors),
    ):
        if os.path.exists(path := os.path.join(folder, name)):
            tensors = load(path)
            if wrong := next(
                (name for name, tensor in tensors.items() if tensor.dtype.name not in hugging_face.WEIGHT_TYPES), None
            ):
                raise ValueError(f"{path}: {wrong}: expected floating-point numbers, got {tensors[wrong].dtype}")
            return {name: tensor.astype(np.float32, copy=False) for name, tensor in tensors.items()}
    contents = ", ".join(sorted(os.listdir(folder))[:8])
    raise ValueError(f"{folder}: expected {WEIGHTS_FILE} or {TORCH_FILE}, got {contents}")


def _sorted_tensors(
    tensors: Mapping[str, np.ndarray], member: Member, folder: str
) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, np.ndarray]]:
    """Returns adapters' tensors, by module and part, and whole weights, named as in classes with heads. Raises
    ValueError for unsupported tensors, and for two of one name.
    """
    low_rank: dict[str, dict[str, np.ndarray]] = {}
    plain: dict[str, np.ndarray] = {}
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


def _form_of(config: Mapping[str, Any], base: StoredModel, plain: Mapping[str, Any], member: Member, path: str) -> Form:
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


def _weights_of_base(base: StoredModel, member: Member, table: NameTable) -> dict[str, np.ndarray]:
    """Returns the base's weights that the adapter's class has too. (RoBERTa's pooler belongs to its classifier.)"""
    own = member.table(member.form_of(base.head, base.weights)[1])
    return {name: weight for name, weight in base.weights.items() if table.theirs(name) == own.theirs(name) is not None}


def _scale(config: Mapping[str, Any], module: str, member: Member, form: Form, path: str) -> Any:
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


@dataclasses.dataclass
class _Change:
    """Collects the changes that an adapter makes to a model's weights. Our products that are one module there share its
    A.
    """

    weights: dict[str, np.ndarray]
    modules: Mapping[str, Mapping[str, np.ndarray]]
    table: NameTable
    folder: str
    start: Any  # init_lora_weights
    products: dict[str, LowRank] = dataclasses.field(default_factory=dict)
    replaced: dict[str, None] = dataclasses.field(default_factory=dict)  # in their order

    def add(self, module: str, parts: Mapping[str, np.ndarray], scale: Any) -> None:
        """Adds the tensors of a module. Raises ValueError that names it if they do not fit."""
        if "embedding_A" in parts and "masked_lm/output_bias" in self.weights:
            raise ValueError(
                f"{self.folder}: {module}.lora_embedding_A: not supported for a model with a masked-LM head, "
                "which uses the table without the adapter"
            )
        if "embedding_A" in parts and "magnitude_vector" in parts:
            raise ValueError(f"{self.folder}: {module}.lora_magnitude_vector: not supported for a table")
        name = self.table.ours(f"{module}.weight") or ""
        if "embedding_A" in parts and np.ndim(self.weights.get(name, 0)) == 2:
            down, up = self._pair(module, parts, "embedding_A", "embedding_B", self.weights[name].shape)
            self._replace(name, self.weights[name] + scale(len(down)) * (up @ down).T)
        elif name.endswith("/output_weights") and parts.keys() <= {"A.weight", "B.weight"} and name in self.weights:
            down, up = self._pair(module, parts, "A.weight", "B.weight", self.weights[name].shape[::-1])
            first = _first_product(self.weights[name].T, len(down), scale(len(down)), self.start)
            self._replace(name, self.weights[name] - first.T + scale(len(down)) * (up @ down))
        elif module in self.modules:
            self._add_to_products(module, parts, scale)
        else:
            raise ValueError(f"{self.folder}: {module}.lora_A: the base has no such product")

    def _replace(self, name: str, weight: np.ndarray) -> None:
        """Replaces one of our weights."""
        self.weights[name] = weight.reshape(self.weights[name].shape).astype(np.float32)
        self.replaced[name] = None

    def _add_to_products(self, module: str, parts: Mapping[str, np.ndarray], scale: Any) -> None:
        names = self.modules[module]
        kernels = {name: as_matrix(f"{name}/kernel", self.weights[f"{name}/kernel"]) for name in names}
        units = [len(outputs) for outputs in names.values()]
        down, up = self._pair(module, parts, "A.weight", "B.weight", (len(next(iter(kernels.values()))), sum(units)))
        ends = np.cumsum(units)[:-1]
        for part in ("B.bias", "magnitude_vector"):
            if part in parts and parts[part].shape != (sum(units),):
                raise ValueError(
                    f"{self.folder}: {module}: expected lora_{part} [{sum(units)}] for this base, got "
                    f"{list(parts[part].shape)}"
                )
        if "B.bias" in parts and any(f"{name}/bias" not in self.weights for name in names):
            raise ValueError(f"{self.folder}: {module}.lora_B.bias: the base has no bias there")
        if self.start in RESIDUAL_STARTS:
            whole = np.concatenate([kernels[name][:, outputs] for name, outputs in names.items()], axis=1)
            rest = whole - _first_product(whole, len(down), scale(len(down)), self.start)
            for (name, outputs), residual in zip(names.items(), np.split(rest, ends, axis=1)):
                kernels[name] = kernels[name].copy()
                kernels[name][:, outputs] = residual
                self._replace(f"{name}/kernel", kernels[name])
        for (name, outputs), rows, bias, magnitude in zip(
            names.items(),
            np.split(up, ends),
            *(
                np.split(parts[part], ends) if part in parts else [None] * len(names)
                for part in ("B.bias", "magnitude_vector")
            ),
        ):
            spread = np.zeros((kernels[name].shape[1], len(down)), np.float32)
            spread[outputs] = rows
            product = LowRank(down.T, spread.T, scale(len(down)))
            self._add_product(name, product, kernels[name], outputs, bias, magnitude)

    def _add_product(
        self, name: str, product: LowRank, kernel: np.ndarray, outputs: np.ndarray, bias: Any, magnitude: Any
    ) -> None:
        if bias is not None:
            own = self.weights[f"{name}/bias"]
            added = np.zeros(own.size, np.float32)
            added[outputs] = product.scale * bias
            self._replace(f"{name}/bias", own.ravel() + added)
        if magnitude is None:  # another module may have the other half of the outputs
            other = self.products.get(name)
            self.products[name] = product if other is None else _summed(other, product)
            return
        whole = kernel + product.delta()  # [K,N]: the norm is of each output (Liu et al. 2024)
        whole[:, outputs] *= magnitude / np.linalg.norm(whole[:, outputs], axis=0)
        self._replace(f"{name}/kernel", whole)

    def _pair(
        self, module: str, parts: Mapping[str, np.ndarray], first: str, second: str, shape: tuple
    ) -> tuple[np.ndarray, np.ndarray]:
        for part in (first, second):
            if part not in parts:
                raise ValueError(f"{self.folder}: {module}.lora_{part} is missing")
        down, up = parts[first], parts[second]
        if down.ndim != 2 or not len(down) or up.shape != (shape[1], len(down)) or down.shape[1] != shape[0]:
            raise ValueError(
                f"{self.folder}: {module}: expected lora_{first} [r, {shape[0]}] and lora_{second} "
                f"[{shape[1]}, r] for this base, got {list(down.shape)} and {list(up.shape)}"
            )
        return down, up


def _first_product(kernel: np.ndarray, rank: int, scale: float, start: Any) -> np.ndarray:
    """Returns the product [K,N] that PEFT subtracts from a kernel before training: the largest singular values (PiSSA,
    Meng et al. 2024), the first rows of a QR decomposition (OLoRA, Bueyuekakyuez 2024), or zeros.
    """
    if start == "pissa":
        left, values, right = np.linalg.svd(kernel, full_matrices=False)
        return (left[:, :rank] * values[:rank]) @ right[:rank]
    if start == "olora":
        orthogonal, triangular = np.linalg.qr(kernel.T)
        return scale * (orthogonal[:, :rank] @ triangular[:rank]).T
    return np.zeros_like(kernel)


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
    of_head = {ours for ours, theirs in form.rows if head and not theirs.startswith(member.prefix)}
    whole = (set(adapters.replaced) | of_head) & {name for name in weights if table.theirs(name)}
    tensors, ranks, alphas = {}, {}, {}
    products, modules = dict(adapters.products), adapted.modules(config, member, table)
    free = [name for names in modules.values() for name in names if f"{name}/kernel" not in whole]
    if not products.keys() & set(free):  # PEFT refuses an adapter without any product
        kernel = as_matrix(f"{free[0]}/kernel", weights[f"{free[0]}/kernel"])
        products[free[0]] = LowRank(np.zeros((len(kernel), 1)), np.zeros((1, kernel.shape[1])), 1.0)
    for module, names in modules.items():
        parts = {name: products.get(name) for name in names if f"{name}/kernel" not in whole}
        if any(parts.values()):
            product = _joined(
                [parts.get(name) for name in names],
                [as_matrix(f"{name}/kernel", weights[f"{name}/kernel"]).shape for name in names],
            )
            firsts = np.cumsum([0, *(weights[f"{name}/kernel"].size // len(product.down) for name in names)])
            order = np.concatenate([first + outputs for first, outputs in zip(firsts, names.values())])
            product = LowRank(product.down, product.up[:, order], product.scale)
            tensors[f"{module}.lora_A.weight"], tensors[f"{module}.lora_B.weight"] = product.down.T, product.up.T
            ranks[module], alphas[module] = product.down.shape[1], product.scale * product.down.shape[1]
    saved, biases = _whole_tensors(stored, whole, weights, table, member, tensors)
    strip = (lambda name: name) if head else lambda name: name.removeprefix(member.prefix)
    save_file(
        {
            PREFIX + strip(name): np.ascontiguousarray(tensor, np.float32)
            for name, tensor in {**tensors, **saved}.items()
        },
        os.path.join(folder, WEIGHTS_FILE),
        metadata={"format": "pt"},
    )
    rank, alpha = (next(iter(values.values()), 8) for values in (ranks, alphas))
    saved_modules = {name.rpartition(".")[0] for name in saved if name not in biases}
    stored_models.write_mapping(
        {
            "peft_type": "LORA",
            "task_type": next((task for task, name in HEADS.items() if name == head), None),
            "base_model_name_or_path": adapters.base,
            "r": rank,
            "lora_alpha": alpha,
            "use_rslora": False,
            "target_modules": sorted(map(strip, ranks)),
            "rank_pattern": {strip(name): value for name, value in ranks.items() if value != rank},
            "alpha_pattern": {strip(name): value for name, value in alphas.items() if value != alpha},
            "modules_to_save": sorted(
                {strip(name) if name.startswith(member.prefix) else name.partition(".")[0] for name in saved_modules}
            )
            or None,
            "bias": _kind_of_biases(biases),
            "lora_dropout": 0.0,
            "fan_in_fan_out": False,
            "inference_mode": True,
        },
        os.path.join(folder, CONFIG_FILE),
    )
    return [name for name in adapters.replaced if name not in whole]


def _whole_tensors(
    stored: StoredModel,
    whole: set[str],
    weights: Mapping[str, np.ndarray],
    table: NameTable,
    member: Member,
    tensors: Mapping[str, Any],
) -> tuple[dict[str, np.ndarray], set[str]]:
    """Returns the tensors of whole weights by their names, and the names of those that are biases without a kernel."""
    config = stored_models.require_config(stored)
    named = {name: weight for name, weight in weights.items() if table.theirs(name)}
    theirs = member.pack(hugging_face.as_tensors(named, table), config)
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


def _kind_of_biases(biases: set[str]) -> str:
    if not biases:
        return "none"
    return "lora_only" if all(name.endswith(".base_layer.bias") for name in biases) else "all"


def _summed(one: LowRank, other: LowRank) -> LowRank:
    """Returns one product for the sum of two."""
    up = np.concatenate([one.scale * one.up, other.scale * other.up])
    return LowRank(np.concatenate([one.down, other.down], axis=1), up, 1.0)


def _joined(parts: Sequence[LowRank | None], shapes: Sequence[tuple[int, ...]]) -> LowRank:
    """Returns one product for several adjacent ones. It has their A if they share it, else all of theirs joined."""
    first = next(part for part in parts if part is not None)
    if all(part is not None and np.array_equal(part.down, first.down) and part.scale == first.scale for part in parts):
        return LowRank(first.down, np.concatenate([part.up for part in parts if part is not None], axis=1), first.scale)
    present = [part for part in parts if part is not None]
    rank, row, column = sum(part.down.shape[1] for part in present), 0, 0
    up = np.zeros((rank, sum(shape[1] for shape in shapes)), np.float32)
    for part, (_, units) in zip(parts, shapes):
        if part is not None:
            up[row : row + len(part.up), column : column + units] = part.scale * part.up
            row += len(part.up)
        column += units
    return LowRank(np.concatenate([part.down for part in present], axis=1), up, 1.0)
