"""The classes of a checkpoint's head: their names, their order, and whether they are exclusive."""

import dataclasses
import re
from collections.abc import Sequence

from official_bert.models.interchange.names import shown
from official_bert.models.interchange.stored_models import Kind, StoredModel

UNNAMED = re.compile(r"LABEL_(\d+)")  # names of unnamed classes in Hugging Face's files
HEADS = ("classifier/", "tagger/")


@dataclasses.dataclass(frozen=True)
class Classes:
    """The classes of a task: their names in the order of the logits, and the kind of answer ("": unknown)."""

    labels: Sequence[str] = ()
    kind: Kind = ""


def named(labels: Sequence[str]) -> bool:
    """Returns whether classes have names of their own, unlike LABEL_0, LABEL_1, ..."""
    return bool(labels) and not all(UNNAMED.fullmatch(label) for label in labels)


def places(labels: Sequence[str], names: Sequence[str]) -> list[int] | None:
    """Returns the index in `labels` of each of the `names`, ignoring case, `_` and `-`; None if the classes differ."""
    for key in (str, _plain):
        place_of = {key(label): place for place, label in enumerate(labels)}
        if len(place_of) == len(labels) == len(names) and set(place_of) == set(map(key, names)):
            return [place_of[key(label)] for label in names]
    return None


def _plain(label: str) -> str:
    return re.sub(r"(?<=\w)[\s_-]+", "_", label.strip().casefold())


def in_order_of(stored: StoredModel, task: Classes) -> tuple[StoredModel, list[str]]:
    """Returns the model with the head's rows in the order of a task's labels, and remarks for the user.

    A head for other classes, or for another kind of answer, is left out, because its weights mean something else.
    """
    known = stored.head in ("classifier", "tagger") and f"{stored.head}/output_bias" in stored.weights
    if not known or not (task.labels or task.kind):
        return stored, []
    if stored.kind and task.kind and stored.kind != task.kind:
        return _without_head(stored), [
            f"its head is not used: it was trained as {stored.kind}, the task is {task.kind}"
        ]
    if (
        not task.labels
        or len(task.labels) != len(stored.weights[f"{stored.head}/output_bias"])
        or len(task.labels) == 1
    ):
        return stored, []
    order = places(stored.labels, task.labels)  # also of LABEL_n: they may be the labels of the data; TF 1 has no names
    if not named(stored.labels) and order is None:
        return stored, [f"its classes have no names: assumed to be in the task's order {', '.join(task.labels)}"]
    if order is None:
        return _without_head(stored), [
            f"its head is not used: its classes are {shown(stored.labels)}, those of the task are "
            f"{shown(task.labels)} (tools/convert_checkpoint.py --labels renames them)"
        ]
    if order == list(range(len(order))):
        unnamed = (
            "its classes have no names but LABEL_0, LABEL_1, ...: options.labels gives them others, in the "
            "order of its outputs"
        )
        return stored, [] if named(stored.labels) else [unnamed]
    weights = dict(stored.weights)
    for name, weight in stored.weights.items():
        if name.startswith((*HEADS, "crf/")):
            weights[name] = weight[order][:, order] if name == "crf/transitions" else weight[order]
    return (
        dataclasses.replace(stored, weights=weights, labels=tuple(task.labels)),
        [f"its classes {shown(stored.labels)} were put into the task's order"],
    )


def _without_head(stored: StoredModel) -> StoredModel:
    kept = {name: weight for name, weight in stored.weights.items() if not name.startswith((*HEADS, "crf/"))}
    return dataclasses.replace(
        stored, weights=kept, unknown=[*stored.unknown, *sorted(set(stored.weights) - set(kept))]
    )
