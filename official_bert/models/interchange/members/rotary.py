"""Rotary positions in the `config.json` of members that use the same ones in all layers."""

from collections.abc import Sequence

from official_bert.model_config import ModelConfig
from official_bert.models.interchange.members.member import Fields, Values

KEYS = ("rope_parameters", "rope_scaling", "rope_theta", "rotary_emb_base")


def rotary(values: Values, scalings: Sequence[str] = ("linear",)) -> Fields:
    """Returns the base and the factor of rotary positions.

    The kind must be default, linear or, in the key `rope_scaling`, one of `scalings`; others raise ValueError. The
    authors' ntk scaling means both a larger base and a factor.
    """
    key, kinds = ("rope_parameters", ["linear"]) if values.get("rope_parameters") else ("rope_scaling", scalings)
    if not isinstance(given := values.get(key) or {}, dict):
        raise ValueError(f"{key}: expected a mapping, got {given!r:.80}")
    rope = {"rope_theta": values.get("rope_theta", values.get("rotary_emb_base")), "factor": 1.0, **given}
    kind = rope.pop("rope_type", rope.pop("type", "default"))
    base, factor = rope.pop("rope_theta"), rope.pop("factor")
    if kind not in ("default", *kinds) or any(value is not None for value in rope.values()):
        raise ValueError(f"{key}: expected type default or {kinds[0]} with rope_theta and factor, got {given}")
    for name, number in (("rope_theta", base), ("factor", factor)):
        if type(number) not in (int, float) or not 0 < number < 1e15:
            raise ValueError(f"{name}: expected a number above 0, got {number!r}")
    if kind == "ntk":
        head_size = values["hidden_size"] // values["num_attention_heads"]
        base, factor = base * factor, factor ** (2 / head_size)
    return {"rotary": float(base), "rotary_factor": 1.0 if kind == "default" else float(factor)}


def their_rotary(config: ModelConfig) -> Fields:
    """Returns the keys of rotary positions: the reverse of `rotary`."""
    factor = {} if config.rotary_factor == 1 else {"factor": config.rotary_factor}
    return {"rope_parameters": {"rope_type": "linear" if factor else "default", "rope_theta": config.rotary, **factor}}
