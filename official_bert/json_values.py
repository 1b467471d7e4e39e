"""JSON of files that someone else wrote: whatever is wrong with a text is a ValueError in one line."""

import json
import re
from typing import Any

HALF = re.compile(r"\\u[dD][89a-fA-F]")  # of a surrogate pair, as an escape: alone it is no character


def parse(text: str | bytes) -> Any:
    """Returns the value in a JSON text, which in bytes is UTF-8. Raises ValueError, saying what is wrong, for other
    texts.

    Those are also texts nested deeper than Python's stack, numbers of 5,000 digits, and halves of surrogate pairs,
    which no file of text can hold.
    """
    try:
        text = text.decode("utf-8-sig") if isinstance(text, bytes) else text
        value = json.loads(text)
        if HALF.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"a lone surrogate ({error.object[error.start]!a}), which is not a character") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return value
