"""All members whose checkpoints are computed here."""

from collections.abc import Mapping
from typing import Any

from official_bert.model_config import ModelConfig
from official_bert.models.interchange.members.albert import ALBERT
from official_bert.models.interchange.members.bert import BERT, ERNIE
from official_bert.models.interchange.members.big_bird import BIG_BIRD
from official_bert.models.interchange.members.deberta import DEBERTA
from official_bert.models.interchange.members.distilbert import DISTILBERT
from official_bert.models.interchange.members.electra import ELECTRA
from official_bert.models.interchange.members.member import Member
from official_bert.models.interchange.members.modernbert import MODERNBERT
from official_bert.models.interchange.members.mpnet import MPNET
from official_bert.models.interchange.members.roberta import ROBERTA

FAMILY = (BERT, ROBERTA, DISTILBERT, MPNET, ERNIE, ELECTRA, ALBERT, DEBERTA, MODERNBERT, BIG_BIRD)


def member_of(values: Mapping[str, Any], path: str) -> tuple[Member, str]:
    """Returns the member of a `config.json` and its `model_type`. Raises ValueError, with those that are computed, for another."""
    architectures = values.get("architectures") or []
    if not (isinstance(architectures, list) and all(isinstance(name, str) for name in architectures)):
        raise ValueError(f"{path}: architectures: expected a list of names, got {str(architectures)[:80]}")
    kind = values.get("model_type", "bert")
    if not isinstance(kind, str):
        raise ValueError(f"{path}: model_type: expected a name, got {str(kind)[:80]}")
    for member in FAMILY:
        if kind in member.stems:
            return member, kind
    computed = ", ".join(name for member in FAMILY for name in member.stems)
    raise ValueError(f"{path}: expected a BERT model or one of its family (model_type {computed}), got model_type {kind!r} "
                     f"({', '.join(architectures) or 'no architectures'})")


def member_for(config: ModelConfig, model_type: str = "") -> tuple[Member, str]:
    """Returns the member that computes what a configuration says, and its `model_type`; the given one if it fits.

    Raises ValueError, naming the fields, if none does.
    """
    named_members = [member for member in FAMILY if model_type in member.stems]
    differing = [(member, member.differences(config)) for member in (*named_members, *FAMILY)]
    for member, fields in differing:
        if not fields:
            return member, model_type if model_type in member.stems else next(iter(member.stems))
    nearest, fields = min(differing, key=lambda pair: len(pair[1]))
    values = ", ".join(f"model.{name} {getattr(config, name)!r}" for name in fields)
    raise ValueError(f"no model of Hugging Face's has {values}; the nearest is {nearest.title}; only --to=ours can hold it")
