"""The lines of text files, whatever their encoding and packing: the first bytes of a file tell both."""

import codecs
import io
from collections.abc import Iterator

from official_bert.files import is_file, open_bytes, read_lines

BYTE_ORDER_MARKS = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
START = 1 << 16  # bytes, read to tell an encoding
LEAST_ZEROS = 0.02  # of the code units of UTF-16, those of ASCII: also Chinese has line ends, digits and commas


def text_lines(path: str, encoding: str = "", what: str = "file") -> Iterator[str]:
    """Yields the lines of a file with their ends, decompressed if it is packed; only a line feed ends a line.

    Raises ValueError, naming the file (`what` it should be), for a file that is missing, damaged or not in the encoding
    (by default UTF-8); the error names the encoding that it seems to have, with the flag. A packed file has the bounds
    of a packed corpus (`containers.check_bounds`).
    """
    packed = is_file(path) and is_packed_inside(path)
    if not encoding and is_file(path) and (name := _without_mark(head_of(path))):
        raise ValueError(f"{path}: not UTF-8, but UTF-16 without a byte-order mark: --encoding={name} reads it")
    if not (encoding or packed):
        try:
            yield from read_lines(path, what, keep_ends=True)
        except ValueError as error:
            raise ValueError(f"{error}{other_encoding(path)}" if "not valid UTF-8" in
                             str(error) else str(error)) from None
        return
    try:
        codecs.lookup(encoding or "utf-8")
    except LookupError:
        raise ValueError(
            f"--encoding={encoding}: expected an encoding that Python knows, such as cp1252, utf-16 or gb18030"
        ) from None
    from official_bert.data.raw_text import containers
    opened, number, unpacked = containers.BadText(), 0, 0
    try:
        with (containers.open_bytes(path, opened) as file,
              io.TextIOWrapper(io.BufferedReader(file),  # type: ignore[type-var]
                               encoding=encoding or "utf-8-sig", newline="\n") as lines):
            while line := lines.readline(containers.LONGEST_LINE + 1 if packed else -1):
                number, unpacked = number + 1, unpacked + len(line)
                if packed:
                    containers.check_bounds(f"{path}:{number}", len(line), unpacked, opened.bytes_read(),
                                            "unpack it first")
                yield line.removeprefix("\ufeff") if number == 1 else line
    except FileNotFoundError:
        raise ValueError(f"{path}: no such {what}") from None
    except UnicodeError as error:
        hint = "" if encoding else other_encoding(path)
        raise ValueError(f"{path}:{number + 1}: not valid {encoding or 'UTF-8'}: {error}{hint}") from None
    except containers.DAMAGE as error:
        raise ValueError(f"{path}:{number + 1}: the compressed file is damaged or cut off here ({error})") from None


def is_packed_inside(path: str) -> bool:
    """Whether the first bytes of a file are those of a packed one."""
    from official_bert.data.raw_text.containers import kind_of
    return kind_of(path) in ("gzip", "bzip2", "xz", "zstd")


def head_of(path: str) -> bytes:
    """The first bytes of a file, decompressed if it is packed; of a damaged one, none."""
    from official_bert.data.raw_text.containers import read_head
    if is_packed_inside(path):
        return read_head(path, START)
    with open_bytes(path) as file:
        return file.read(START)


def other_encoding(path: str) -> str:
    """A hint at the encoding of a file that is not UTF-8, and the flag for it."""
    start = head_of(path)
    if name := _without_mark(start):
        return f"; it is UTF-16 without a byte-order mark: --encoding={name} reads it"
    for mark, name in BYTE_ORDER_MARKS.items():
        if start.startswith(mark):
            return f"; it is UTF-16: --encoding={name} reads it"
    try:
        start.decode("cp1252")
    except UnicodeDecodeError:
        return "; --encoding=NAME reads another encoding"
    return "; it may be cp1252 (Windows, Latin alphabets): --encoding=cp1252 reads it, or another encoding"


def _without_mark(start: bytes) -> str:
    """Returns `utf-16-le` or `utf-16-be` if bytes seem to be UTF-16 without a byte-order mark, else "".

    Its ASCII characters are a zero byte and another one, always in the same order; a text may also have characters such
    as U+4E00.
    """
    if start.startswith(tuple(BYTE_ORDER_MARKS)):
        return ""
    units = start[:len(start) // 2 * 2]
    for name, place in (("utf-16-le", 1), ("utf-16-be", 0)):
        zeros, others = (units[one::2].count(0) for one in (place, 1 - place))
        if zeros > others and zeros >= max(2.0, LEAST_ZEROS * len(units) / 2):
            try:
                text = codecs.getincrementaldecoder(name)().decode(units)
            except UnicodeDecodeError:
                continue
            if "\n" in text or len(start) == START:
                return name
    return ""
