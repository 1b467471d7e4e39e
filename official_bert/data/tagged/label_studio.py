"""Label Studio's exports: tasks with annotations (JSON), and rows with a list of regions (JSON_MIN).

An annotation that is the ground truth counts, else the first that nobody cancelled. Predictions are no annotations.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from official_bert.data.tagged.spans import Reader, Record, Span, of_utf16

TYPES = ("labels", "hypertextlabels")  # of regions that are entities, and keys of their labels
FIRST_NODE = re.compile(r"(/\w+(\(\))?(\[1\])?)+")  # the XPath of the only node of a plain text
ADDRESS = re.compile(r"\w+://\S+")
MARKUP = re.compile(r"</?[A-Za-z][^<>]*>")
Task = Mapping[str, Any]


def is_task(row: Any) -> bool:
    """Returns whether a row is a task with a text."""
    return (
        isinstance(row, Mapping)
        and isinstance(data := row.get("data"), Mapping)
        and any(isinstance(value, str) for value in data.values())
    )


def are_regions(values: Any) -> bool:
    """Returns whether values are a list of regions of texts; there may be none."""
    return isinstance(values, list) and all(
        isinstance(value, Mapping) and "start" in value and any(key in value for key in TYPES) for value in values
    )


def is_min_row(row: Any) -> bool:
    """Returns whether a row is one of JSON_MIN."""
    if not isinstance(row, Mapping) or not any(isinstance(value, str) for value in row.values()):
        return False
    lists = [value for value in row.values() if are_regions(value)]
    return "annotation_id" in row or any(lists) or (bool(lists) and isinstance(row.get("text"), str))


def reader(tasks: Sequence[Task]) -> Reader:
    """Returns the function that reads one of these tasks; all of them tell the key of their texts.

    Raises ValueError if nothing tells it.
    """
    key = _text_key(
        [task["data"] for task in tasks],
        [list(_shown_regions(task)) for task in tasks],
        {str(result.get("to_name")) for task in tasks for result in _shown_results(task)},
    )

    def read(task: Task) -> Record | None:
        everybody = _annotations(task)
        annotations = [
            one for one in everybody if not (one.get("was_cancelled") or one.get("skipped") or _rejected(one))
        ]
        text = _text_at(task["data"], key)
        if ADDRESS.fullmatch(text):
            raise ValueError(
                f"expected a text under {key!r}, got the url of one, {text!r:.60}: put the texts in their place"
            )
        if not annotations:
            return None if everybody else (text, None)
        truth = next((one for one in annotations if one.get("ground_truth")), annotations[0])
        return text, _entities(text, _regions_of(truth.get("result") or []))

    return read


def min_reader(rows: Sequence[Task]) -> Reader:
    """Returns the function that reads one of these rows of JSON_MIN, as `reader` does."""
    regions = [[region for value in row.values() if are_regions(value) for region in value] for row in rows]
    key = _text_key(rows, regions, set())

    def read(row: Task) -> Record:
        lists = [value for value in row.values() if are_regions(value)]
        text = _text_at(row, key)
        if not lists and row.get("annotation_id") is None:
            return text, None
        return text, _entities(text, [region for values in lists for region in values])

    return read


def write_task(task: Task, text: str, spans: Sequence[Span]) -> dict[str, Any]:
    """Writes entities of a text as the prediction of a task, which a person confirms."""
    data = stored_data if isinstance(stored_data := task.get("data"), Mapping) and stored_data else {"text": text}
    key = next((key for key, value in data.items() if value == text), "text")
    results = [
        {"id": f"e{number}", "from_name": "label", "to_name": key, "type": "labels", "value": value}
        for number, value in enumerate(_written(text, spans))
    ]
    kept = {key: value for key, value in task.items() if key not in ("annotations", "completions", "predictions")}
    return kept | {"data": data, "predictions": [{"result": results}]}


def write_min(row: Task, text: str, spans: Sequence[Span]) -> dict[str, Any]:
    """Writes entities of a text as a row of JSON_MIN."""
    keys = [key for key, value in row.items() if are_regions(value)]
    kept = {key: value for key, value in row.items() if key not in keys}
    text_key = next((key for key, value in row.items() if value == text), "text")
    return kept | {text_key: text, (keys or ["label"])[0]: _written(text, spans)}


def _written(text: str, spans: Iterable[Span]) -> list[dict[str, Any]]:
    return [
        {"start": span.start, "end": span.end, "text": span.words or text[span.start : span.end], "labels": [span.kind]}
        for span in spans
    ]


def _annotations(task: Task) -> Sequence[Task]:
    return task.get("annotations") or task.get("completions") or []  # before version 1.0


def _rejected(annotation: Task) -> bool:
    """Whether the last review of an annotation rejected it."""
    reviews = [review for review in annotation.get("reviews") or [] if "accepted" in review]
    return bool(reviews) and reviews[-1]["accepted"] is False


def _shown_results(task: Task) -> Iterator[Task]:
    """Yields what people and machines marked in a task."""
    for one in [*_annotations(task), *(task.get("predictions") or [])]:
        yield from one.get("result") or []


def _shown_regions(task: Task) -> Iterator[Task]:
    return (result["value"] for result in _shown_results(task) if result.get("type", TYPES[0]) in TYPES)


def _regions_of(results: Sequence[Task]) -> list[Task]:
    """The values of the regions that are entities; a region may also have choices or texts of its own.

    Raises ValueError for regions of another type.
    """
    entities = [result for result in results if result.get("type", TYPES[0]) in TYPES]
    ids = {result.get("id") for result in entities}
    for result in results:
        if (
            isinstance(result.get("value"), Mapping)
            and "start" in result["value"]
            and (result not in entities and result.get("id") not in ids)
        ):
            raise ValueError(f"expected regions of type {' or '.join(TYPES)}, got {result.get('type')!r}")
    return [result["value"] for result in entities]


def _entities(text: str, regions: Iterable[Task]) -> list[Span]:
    """Reads regions, each of which may have several labels."""
    spans = []
    for region in regions:
        start, end = _places(region)
        if TYPES[1] in region and MARKUP.search(text):
            raise ValueError(
                "expected plain text, got HTML, whose tags are not counted in the positions of hypertextlabels"
            )
        kinds = next((region[key] for key in TYPES if key in region), None)
        if kinds is None:
            raise ValueError(f"expected {' or '.join(TYPES)} of a region, got none from {start} to {end}")
        spans += [Span(start, end, kind, str(region.get("text") or "")) for kind in kinds]
    return spans


def _places(region: Task) -> tuple[Any, Any]:
    """Start and end of a region: those of hypertext count in the whole, or in its only node of text."""
    places = region.get("globalOffsets") or region
    if not isinstance(places["start"], str):
        return places["start"], places["end"]
    if places["start"] != places["end"] or not FIRST_NODE.fullmatch(places["start"]):
        raise ValueError(f"expected globalOffsets beside places in one of several nodes, got {places['start']}")
    return region["startOffset"], region["endOffset"]


def _text_at(data: Task, key: str) -> str:
    if not isinstance(text := data.get(key), str):
        raise ValueError(f"expected a text under {key!r}, as in other rows, got {text!r:.40}")
    return text


def _text_key(data: Sequence[Task], regions: Sequence[Sequence[Task]], names: set[str]) -> str:
    """Returns the key of the texts, where most regions' words stand; `text`, or one of `names`, before others."""
    keys = [key for key in data[0] if all(isinstance(row.get(key), str) for row in data)] or [
        key for key, value in data[0].items() if isinstance(value, str)
    ]
    fitting = {
        key: sum(
            _stands(region, row[key])
            for row, values in zip(data, regions)
            for region in values
            if isinstance(row.get(key), str)
        )
        for key in keys
    }
    best = [key for key in keys if fitting[key] == max(fitting.values())]
    preferred = [key for key in best if key == "text"] or [key for key in best if key in names] or best
    if len(preferred) != 1:
        raise ValueError(
            f"expected a key text, or words of entities, to tell the text of the tasks, got {', '.join(preferred)}"
        )
    return preferred[0]


def _stands(region: Task, text: str) -> bool:
    """Whether a region is within a text, and its words, if the file has them, stand at its place."""
    try:
        (span, *_) = _entities(text, [region])
        within = 0 <= span.start < span.end <= len(text) + sum(character > "\uffff" for character in text)
        if not within or not span.words:
            return within
        return not span.contradicts(text) or not of_utf16(text, [span], "")[0].contradicts(text)
    except (KeyError, TypeError, ValueError):
        return False
