"""Rotary positions in the `config.json` of members whose layers all have the same."""

from official_bert.model_config import ModelConfig
from official_bert.models.interchange.members.member import Fields, Values

KEYS = ("rope_parameters", "rope_scaling", "rope_theta", "rotary_emb_base")


def rotary(values: Values) -> Fields:
    """Base and factor. Raises ValueError for another kind of rotary positions than default, linear and the authors'
    ntk, which is both a larger base and a factor.
    """
    base = values.get("rope_theta", values.get("rotary_emb_base"))
    key = "rope_parameters" if values.get("rope_parameters") else "rope_scaling"
    if not isinstance(values.get(key) or {}, dict):
        raise ValueError(f"{key}: expected a mapping, got {values[key]!r:.80}")
    rope = {"rope_type": "default", "rope_theta": base, "factor": 1.0, **(values.get(key) or {})}
    kind, base, factor = rope.pop("type", rope.pop("rope_type")), rope.pop("rope_theta"), rope.pop("factor")
    rope.pop("rope_type", None)
    if kind not in ("default", "linear", *(["ntk"] if key == "rope_scaling" else [])) or any(rope.values()):
        raise ValueError(f"{key}: expected type default or linear with rope_theta and factor, got {values[key]}")
    for name, number in (("rope_theta", base), ("factor", factor)):
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number < 1e15:
            raise ValueError(f"{name}: expected a number above 0, got {number!r}")
    if kind == "ntk":
        size = values["hidden_size"] // values["num_attention_heads"]
        return {"rotary": float(base * factor), "rotary_factor": float(factor ** (2 / size))}
    return {"rotary": float(base), "rotary_factor": float(factor if kind == "linear" else 1.0)}


def their_rotary(config: ModelConfig) -> Fields:
    """The reverse of `rotary`."""
    factor = {} if config.rotary_factor == 1 else {"factor": config.rotary_factor}
    return {"rope_parameters": {"rope_type": "linear" if factor else "default", "rope_theta": config.rotary, **factor}}
