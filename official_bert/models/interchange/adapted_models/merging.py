"""Merges the tensors of a PEFT adapter into the weights of its base."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from official_bert.models.interchange.adapted_models.adapted import Modules
from official_bert.models.interchange.names import NameTable, Tensors, Weights, as_matrix
from official_bert.models.interchange.stored_models import LowRank

RESIDUAL_STARTS = ("pissa", "olora")  # first values that take the adapter's first product out of the base
Scale = Callable[[int], float]  # of a product, by its rank


@dataclasses.dataclass
class Change:
    """Collects the changes that an adapter makes to a model's weights. Our products that are one module there share its
    A.
    """

    weights: Tensors
    modules: Modules
    table: NameTable
    folder: str
    start: Any  # init_lora_weights
    products: dict[str, LowRank] = dataclasses.field(default_factory=dict)
    replaced: dict[str, None] = dataclasses.field(default_factory=dict)  # in their order

    def add(self, module: str, parts: Weights, scale: Scale) -> None:
        """Adds the tensors of a module. Raises ValueError that names it if they do not fit."""
        if "embedding_A" in parts:
            self._refuse_table(module, parts)
        name = self.table.ours(f"{module}.weight") or ""
        own = self.weights.get(name)
        if "embedding_A" in parts and own is not None and own.ndim == 2:
            down, up, factor = self._pair(module, parts, own.shape, scale, ("embedding_A", "embedding_B"))
            self._replace(name, own + factor * (up @ down).T)
        elif name.endswith("/output_weights") and parts.keys() <= {"A.weight", "B.weight"} and own is not None:
            down, up, factor = self._pair(module, parts, own.shape[::-1], scale)
            first = self._first_product(own.T, len(down), factor)
            self._replace(name, own - first.T + factor * (up @ down))
        elif all(f"{ours}/kernel" in self.weights for ours in self.modules.get(module, [""])):
            self._add_to_products(module, parts, scale)
        else:
            raise ValueError(f"{self.folder}: {module}.lora_A: the base has no such product")

    def _refuse_table(self, module: str, parts: Weights) -> None:
        """Raises ValueError for adapters of an embedding table that are not merged."""
        if "masked_lm/output_bias" in self.weights:
            raise ValueError(
                f"{self.folder}: {module}.lora_embedding_A: not supported for a model with a masked-LM head, "
                "which uses the table without the adapter"
            )
        if "magnitude_vector" in parts:
            raise ValueError(f"{self.folder}: {module}.lora_magnitude_vector: not supported for a table")

    def _replace(self, name: str, weight: np.ndarray) -> None:
        """Replaces one of our weights."""
        self.weights[name] = weight.reshape(self.weights[name].shape).astype(np.float32)
        self.replaced[name] = None

    def _add_to_products(self, module: str, parts: Weights, scale: Scale) -> None:
        names = self.modules[module]
        kernels = {name: as_matrix(f"{name}/kernel", self.weights[f"{name}/kernel"]) for name in names}
        counts = [len(outputs) for outputs in names.values()]
        down, up, factor = self._pair(module, parts, (len(next(iter(kernels.values()))), sum(counts)), scale)
        vectors = {part: parts[part] for part in ("B.bias", "magnitude_vector") if part in parts}
        for part, vector in vectors.items():
            if vector.shape != (sum(counts),):
                raise ValueError(
                    f"{self.folder}: {module}: expected lora_{part} [{sum(counts)}] for this base, got "
                    f"{list(vector.shape)}"
                )
        if "B.bias" in parts and any(f"{name}/bias" not in self.weights for name in names):
            raise ValueError(f"{self.folder}: {module}.lora_B.bias: the base has no bias there")
        is_residual = self.start in RESIDUAL_STARTS
        if is_residual:
            rest = np.concatenate([kernels[name][:, outputs] for name, outputs in names.items()], axis=1)
            rest = rest - self._first_product(rest, len(down), factor)
        places = np.split(np.arange(sum(counts)), np.cumsum(counts)[:-1])  # of each of ours among the module's outputs
        for (name, outputs), own in zip(names.items(), places):
            kernel = kernels[name]
            if is_residual:
                kernel = kernel.copy()
                kernel[:, outputs] = rest[:, own]
                self._replace(f"{name}/kernel", kernel)
            spread = np.zeros((kernel.shape[1], len(down)), np.float32)
            spread[outputs] = up[own]
            product = LowRank(down.T, spread.T, factor)
            self._add_product(name, product, kernel, outputs, {part: vectors[part][own] for part in vectors})

    def _add_product(
        self, name: str, product: LowRank, kernel: np.ndarray, outputs: np.ndarray, vectors: Weights
    ) -> None:
        """Adds the product of some outputs of one of our kernels, with their bias and magnitude if they have them."""
        if "B.bias" in vectors:
            own = self.weights[f"{name}/bias"]
            added = np.zeros(own.size, np.float32)
            added[outputs] = product.scale * vectors["B.bias"]
            self._replace(f"{name}/bias", own.ravel() + added)
        if "magnitude_vector" not in vectors:
            other = self.products.get(name)  # another module may have the other half of the outputs
            self.products[name] = product if other is None else _summed(other, product)
            return
        whole = kernel + product.delta()  # [K,N]: the norm is of each output (Liu et al. 2024)
        whole[:, outputs] *= vectors["magnitude_vector"] / np.linalg.norm(whole[:, outputs], axis=0)
        self._replace(f"{name}/kernel", whole)

    def _pair(
        self,
        module: str,
        parts: Weights,
        shape: tuple[int, ...],
        scale: Scale,
        names: tuple[str, str] = ("A.weight", "B.weight"),
    ) -> tuple[np.ndarray, np.ndarray, float]:
        """Returns A [R,K], B [N,R] and the factor of a product for a kernel of `shape` [K,N]."""
        if missing := [part for part in names if part not in parts]:
            raise ValueError(f"{self.folder}: {module}.lora_{missing[0]} is missing")
        first, second = names
        down, up = parts[first], parts[second]
        if down.ndim != 2 or not len(down) or up.shape != (shape[1], len(down)) or down.shape[1] != shape[0]:
            raise ValueError(
                f"{self.folder}: {module}: expected lora_{first} [r, {shape[0]}] and lora_{second} "
                f"[{shape[1]}, r] for this base, got {list(down.shape)} and {list(up.shape)}"
            )
        return down, up, scale(len(down))

    def _first_product(self, kernel: np.ndarray, rank: int, scale: float) -> np.ndarray:
        """Returns the product [K,N] that PEFT subtracts from a kernel before training: the largest singular values
        (PiSSA, Meng et al. 2024), the first rows of a QR decomposition (OLoRA, Bueyuekakyuez 2024), or zeros.
        """
        if self.start == "pissa":
            left, values, right = np.linalg.svd(kernel, full_matrices=False)
            return (left[:, :rank] * values[:rank]) @ right[:rank]
        if self.start == "olora":
            orthogonal, triangular = np.linalg.qr(kernel.T)
            return scale * (orthogonal[:, :rank] @ triangular[:rank]).T
        return np.zeros_like(kernel)


def _summed(one: LowRank, other: LowRank) -> LowRank:
    """Returns one product for the sum of two."""
    up = np.concatenate([one.scale * one.up, other.scale * other.up])
    return LowRank(np.concatenate([one.down, other.down], axis=1), up, 1.0)
