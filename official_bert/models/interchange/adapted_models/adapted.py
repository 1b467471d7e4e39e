"""Low-rank adapters: merges them into the weights of a base, and lists the products that can have one."""

import contextlib
import dataclasses
import hashlib
import re
from collections.abc import Mapping, Sequence

import numpy as np

from official_bert.model_config import ModelConfig
from official_bert.models.adaptation import ADAPTER
from official_bert.models.encoder import ENCODER_PREFIXES
from official_bert.models.interchange.members.family import member_for
from official_bert.models.interchange.members.member import Member
from official_bert.models.interchange.names import NameTable, Tensors, Weights, as_matrix, with_prefix
from official_bert.models.interchange.stored_models import Adapters, LowRank, StoredModel

# Products by their names in Hugging Face's files, each with ours that it contains and the numbers of their outputs.
Modules = dict[str, dict[str, np.ndarray]]
WHERE = "config.training.adapters.target_modules"


def product_names(config: ModelConfig) -> list[str]:
    """Returns our names of the dense layers of an encoder, for example layer_0/attention/query."""
    distances = ("distance_query", "distance_key") if config.position_buckets and config.distance_projections else ()
    attention = [f"attention/{name}" for name in ("query", "key", "value", *distances, "output")]
    layers = [
        f"layer_{number}/{name}"
        for number in range(config.sharing.own_layers)
        for name in (*attention, "intermediate", "output")
    ]
    return [*(["embeddings/projection"] if config.embedding_size else []), *layers, "pooler"]


def modules(config: ModelConfig, member: Member, table: NameTable) -> Modules:
    """Returns the products of a member by their names in Hugging Face's files, each with our products that it contains
    (three in Wqkv).

    For each of ours it gives the numbers of its outputs that the module has, in the module's order: half of those of a
    gated unit, or both halves exchanged.
    """
    names = product_names(config)
    most = max(2 * config.intermediate_size, config.hidden_size) + 1
    numbered = {
        theirs: (number * most + np.arange(outputs_of(name, config)))[:, None]
        for number, name in enumerate(names)
        if (theirs := table.theirs(f"{name}/kernel"))
    }
    return {
        theirs.removesuffix(".weight"): {
            names[number]: codes[codes // most == number] % most for number in dict.fromkeys((codes // most).ravel())
        }
        for theirs, codes in member.pack(numbered, config).items()
    }


def outputs_of(name: str, config: ModelConfig) -> int:
    """Returns the number of outputs of one of the products."""
    if name.endswith("/intermediate"):
        return config.intermediate_size * (2 if config.feed_forward == "gated" else 1)
    return config.hidden_size


def targets(config: ModelConfig, wanted: str | Sequence[str]) -> list[str]:
    """Returns our names of the products that `target_modules` selects by PEFT's rules.

    Names may be ours or those in Hugging Face's files. Raises ValueError for a name that matches no product.
    """
    names = {name: [name.replace("/", ".")] for name in product_names(config)}
    with contextlib.suppress(ValueError):  # Hugging Face has no such model
        member, _ = member_for(config)
        for theirs, ours in modules(config, member, member.table()).items():
            for name in ours:
                names[name] += [theirs, theirs.removeprefix(member.prefix)]
    if wanted == "all-linear":
        return list(names)
    patterns = (
        {wanted: wanted} if isinstance(wanted, str) else {entry: rf"(.*\.)?{re.escape(entry)}" for entry in wanted}
    )
    found: set[str] = set()
    for entry, pattern in patterns.items():
        try:
            matching = {name for name, forms in names.items() if any(re.fullmatch(pattern, form) for form in forms)}
        except re.error as error:
            raise ValueError(f"{WHERE}: {entry!r:.80}: not a regular expression: {error}") from None
        if not matching:
            known = ", ".join(sorted({form.rpartition(".")[2] for forms in names.values() for form in forms}))
            raise ValueError(
                f"{WHERE}: expected all-linear, a list of names of products ({known}), or a regular "
                f"expression for whole names, got {entry!r:.80}"
            )
        found |= matching
    return [name for name in names if name in found]


def digest(base: StoredModel) -> str:
    """Returns the SHA-256 of the weights of a base's encoder. It is the same in every format."""
    total = hashlib.sha256()
    for name, weight in sorted(with_prefix(base.weights, *ENCODER_PREFIXES).items()):
        total.update(name.encode() + np.ascontiguousarray(weight, np.float32).tobytes())
    return total.hexdigest()


def over_base(run: StoredModel, base: StoredModel, path: str, scale: float) -> StoredModel:
    """Returns the complete model of a run whose checkpoint holds only adapters and head: the adapters are merged into
    the base.
    """
    stems = [name.removesuffix(f"{ADAPTER}A") for name in run.weights if name.endswith(f"{ADAPTER}A")]
    products = {
        stem: LowRank(run.weights[f"{stem}{ADAPTER}A"], run.weights[f"{stem}{ADAPTER}B"], scale) for stem in stems
    }
    own = {name: weight for name, weight in run.weights.items() if ADAPTER not in name}
    encoder = with_prefix(base.weights, *ENCODER_PREFIXES)
    return dataclasses.replace(
        run, weights=merged({**encoder, **own}, products), adapters=Adapters(products, tuple(own), path)
    )


def merged(weights: Weights, products: Mapping[str, LowRank]) -> Tensors:
    """Returns the weights with the products added to their kernels: W + scale A B."""
    added = {f"{name}/kernel": product.delta() for name, product in products.items()}
    return {
        **weights,
        **{name: (as_matrix(name, weights[name]) + delta).astype(np.float32) for name, delta in added.items()},
    }
