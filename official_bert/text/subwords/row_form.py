"""The form of the rows that a `tokenizer.json`'s `post_processor` makes from one text or two."""

from collections.abc import Iterator, Mapping
from typing import Any

# Separators between two texts, and the segment of the second.
FORMS = {"RobertaProcessing": (2, 0), "BertProcessing": (1, 1)}
PLACES_ALONE = "ByteLevel"  # cuts spaces off the places of tokens


def form_of_pairs(
    processor: Mapping[str, Any] | None, special: Mapping[str, str], where: str
) -> tuple[int, int] | None:
    """Returns the number of separators between two texts and the segment of the second; None if no step makes rows.

    `special` maps BERT's roles to tokens. Raises ValueError for rows that `Template` cannot express.
    """
    steps = list(_steps(processor or {}))
    kinds = [str(step.get("type")) for step in steps]
    if unknown := set(kinds) - {*FORMS, "TemplateProcessing", PLACES_ALONE}:
        raise ValueError(
            f"{where}: expected TemplateProcessing, {', '.join(FORMS)} or {PLACES_ALONE}, alone or in a "
            f"Sequence, got {', '.join(sorted(unknown))}"
        )
    making = [step for step in steps if step["type"] != PLACES_ALONE]
    if len(making) > 1:
        raise ValueError(f"{where}: expected one step that makes rows, got {' and '.join(kinds)}")
    return _form(making[0], special, where) if making else None


def _steps(processor: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yields the steps of a processor, those of sequences one by one."""
    if processor.get("type") == "Sequence":
        for step in processor["processors"]:
            yield from _steps(step)
    elif processor:
        yield processor


def _form(step: Mapping[str, Any], special: Mapping[str, str], where: str) -> tuple[int, int]:
    first, last = special["[CLS]"], special["[SEP]"]
    if step["type"] in FORMS:
        if (tokens := (step["cls"][0], step["sep"][0])) != (first, last):
            raise ValueError(f"{where}: expected rows with {first} and {last}, got {' and '.join(tokens)}")
        return FORMS[step["type"]]
    single, pair = (_template(step, name, where) for name in ("single", "pair"))
    forms = {
        (count, segment): [(first, 0), ("A", 0), *[(last, 0)] * count, ("B", segment), (last, segment)]
        for count in (1, 2)
        for segment in (0, 1)
    }
    if single != [(first, 0), ("A", 0), (last, 0)] or pair not in forms.values():
        shown = " or ".join(" ".join(name for name, _ in forms[count, 0]) for count in (1, 2))
        raise ValueError(
            f"{where}: expected rows {first} A {last}, and {shown} in segment 0 but for B and its {last}, "
            f"got {_shown(single)}, and {_shown(pair)}"
        )
    return next(form for form, row in forms.items() if row == pair)


def _template(step: Mapping[str, Any], name: str, where: str) -> list[tuple[str, int]]:
    """Returns the parts of a template's row, each with its segment. Raises ValueError for something else."""
    row = []
    for part in step.get(name) or ():
        try:
            ((kind, content),) = part.items()
            tokens = [content["id"]]
            if kind == "SpecialToken":  # has a name, under which its tokens are listed
                tokens = step.get("special_tokens", {}).get(content["id"], {}).get("tokens", tokens)
            row += [(str(token), int(content.get("type_id", 0))) for token in tokens]
        except (ValueError, LookupError, TypeError, AttributeError):
            raise ValueError(f"{where}.{name}: expected tokens and texts, got {part!r:.80}") from None
    return row


def _shown(row: list[tuple[str, int]]) -> str:
    return " ".join(f"{name:.40}:{segment}" if segment else f"{name:.40}" for name, segment in row[:8]) or "none"
