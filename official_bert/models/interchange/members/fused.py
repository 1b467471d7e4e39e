"""Products that are joined in one tensor of a file, and separate or in another order in a member's table."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from official_bert.model_config import ModelConfig
from official_bert.models.interchange.members.member import Rows, Tensors, layers, norm, tables

# transformers' own names of what NomicBERT and jina-embeddings-v3 share, and the authors', which are written.
SECOND_NAMES = {
    r"\bembeddings\.LayerNorm\.": "emb_ln.",
    r"(?<!encoder\.)\blayers\.": "encoder.layers.",
    r"\bpost_attention_layernorm\.": "norm1.",
    r"\bpost_mlp_layernorm\.": "norm2.",
}
Modules = Mapping[str, str]  # ends of modules' names, and a letter for each product in them, in order


def encoder(prefix: str, attention: str) -> Rows:
    """Returns the rows of the encoder of NomicBERT and jina-embeddings-v3, which differ in the attention's name."""
    parts = {f"attention/{part}": f"{attention}.{part[0]}" for part in ("query", "key", "value")}
    return (
        *tables(prefix, ("word_embeddings", "token_type_embeddings"))[:2],
        *norm("embeddings/LayerNorm/", f"{prefix}emb_ln."),
        *layers(
            prefix + "encoder.layers.{i}.",
            {
                **parts,
                "attention/output": f"{attention}.out_proj",
                "attention_LayerNorm": "norm1",
                "intermediate": "mlp.fc1",
                "output": "mlp.fc2",
                "output_LayerNorm": "norm2",
            },
        ),
    )


@dataclasses.dataclass(frozen=True)
class Fused:
    """Queries, keys and values (`{"attn.Wqkv": "qkv"}`), or the halves of a gated unit, as files and as the table join
    them.
    """

    theirs: Modules
    table: Modules

    def unpack(self, tensors: Tensors, _: ModelConfig) -> Tensors:
        """Returns a file's tensors with the names and shapes of the table."""
        return regrouped(tensors, self.theirs, self.table)

    def pack(self, tensors: Tensors, _: ModelConfig) -> Tensors:
        """Returns the table's tensors with the names and shapes of a file."""
        return regrouped(tensors, self.table, self.theirs)


def regrouped(tensors: Tensors, source: Modules, target: Modules) -> Tensors:
    """Splits the tensors of the modules `source` [M*rows,...] and joins the pieces to those of `target`."""
    kept: Tensors = {}
    pieces: dict[tuple[str, str], Tensors] = {}
    for name, tensor in tensors.items():
        module, _, kind = name.rpartition(".")
        end = next((end for end in source if f".{module}".endswith(f".{end}")), "")
        if not end or not tensor.ndim or len(tensor) % len(source[end]):
            kept[name] = tensor
            continue
        parts = zip(source[end], np.split(tensor, len(source[end])))
        pieces.setdefault((module.removesuffix(end), kind), {}).update(parts)
    for (stem, kind), letters in pieces.items():
        for end, wanted in target.items():
            if letters.keys() >= {*wanted}:
                kept[f"{stem}{end}.{kind}"] = np.concatenate([letters[letter] for letter in wanted])
    return kept
