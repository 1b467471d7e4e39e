"""JSON of files that someone else wrote: whatever is wrong with a text is a ValueError in one line."""

import json
import re
from typing import Any

HALF = re.compile(r"\\u[dD][89a-fA-F]")  # of a surrogate pair, as an escape: alone it is no character


def _with_keys_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns an object. Raises ValueError for a key that stands there twice, of which Python keeps the last value."""
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise ValueError(f"the key {key!r:.60} twice in an object")
        values[key] = value
    return values


# As `parse`, but for halves of surrogate pairs, which the caller judges.
decode = json.JSONDecoder(object_pairs_hook=_with_keys_once).decode


def parse(text: str | bytes, most: int = 0) -> Any:
    """Returns the value in a JSON text, which in bytes is UTF-8. Raises ValueError, saying what is wrong, for other
    texts, and for one of more than `most` values, unless that is 0.

    Those are also texts nested deeper than Python's stack, numbers of 5,000 digits, objects with a key twice, and
    halves of surrogate pairs, which no file of text can hold.
    """
    try:
        text = text.decode("utf-8-sig") if isinstance(text, bytes) else text
        if most and (values := sum(map(text.count, ",[{"))) > most:
            raise ValueError(f"expected at most {most:,} values, got {values:,}")
        value = decode(text)
        if HALF.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"a lone surrogate ({error.object[error.start]!a}), which is not a character") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return value
