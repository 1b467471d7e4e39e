"""Reads the lines of text files in any encoding and compression, both detected from a file's first bytes."""

import codecs
import functools
import io
import re
from collections.abc import Iterator, Sequence

from absl import logging

from official_bert.data.raw_text import packed_files
from official_bert.fields import OptionsNeededError
from official_bert.limits import MOST_SAMPLE
from official_bert.storage.files import is_file, modified, open_bytes, read_lines, size_of

BYTE_ORDER_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
BINARY = {b"PAR1": "parquet", b"PK\x03\x04": "xlsx"}  # formats of tables by the first bytes
# The encodings of texts that people have, beside UTF-8; of Latin alphabets, the likeliest first; of others.
LATIN = ("cp1252", "cp1250", "iso8859-2", "cp1254", "cp1257", "mac-roman", "cp850")
OTHERS = ("cp1251", "koi8-r", "cp866", "cp1253", "cp1255", "cp1256", "gb18030", "big5", "cp932", "euc-jp", "cp949")
WORD = re.compile(rb"[A-Za-z\x80-\xff]{2,}")
SAME_CHAOS = 0.1  # of `charset-normalizer`: the measures of texts that are about equally likely
MOST_LINES = 2000  # of another encoding, which tell it
START = 1 << 16  # bytes, read to tell an encoding
MOST_BY_CHANCE = 3  # bytes of UTF-8 in a line of another encoding
# Encodings of bytes below 128, and the marks of other alphabets in them.
SEVEN_BITS = {
    "iso2022_jp": re.compile(rb"\x1b(\$[@B]|\([BJ])"),
    "iso2022_kr": re.compile(rb"\x1b\$\)C|[\x0e\x0f]"),
    "hz": re.compile(rb"~[{}]"),
    "utf-7": re.compile(rb"\+[A-Za-z0-9+/]{3,}"),
}
OTHER = "; --encoding=NAME reads another encoding"
_warn_once = functools.cache(logging.warning)
LEAST_ZEROS = 0.02  # of the code units of UTF-16, those of ASCII: also Chinese has line ends, digits and commas


def text_lines(path: str, encoding: str = "", what: str = "file") -> Iterator[str]:
    """Yields the lines of a file with their ends, decompressed if it is packed; only a line feed ends a line.

    Raises ValueError, naming the file (`what` it should be), for a file that is missing, damaged or not in the
    encoding, by default that of `encoding_of`. A packed file has the bounds of a packed corpus
    (`packed_files.bounded_lines`).
    """
    if not encoding and is_file(path) and (encoding := encoding_of(path)):
        _warn_once("%s: read with --encoding=%s", path, encoding)
    packed = is_file(path) and is_packed_inside(path)
    if not (encoding or packed):
        try:
            yield from read_lines(path, what, keep_ends=True)
        except ValueError as error:
            raise ValueError(f"{error}{OTHER if 'UTF-8' in str(error) else ''}") from None
        return
    packed_files.check_encoding(encoding)
    opened, number, remedy = packed_files.Opened(), 0, "unpack it first" if packed else ""
    try:
        with (
            packed_files.open_bytes(path, opened) as file,
            io.TextIOWrapper(
                io.BufferedReader(file),  # type: ignore[type-var]
                encoding=encoding or "utf-8-sig",
                newline="\n",
            ) as lines,
        ):
            for number, line in enumerate(packed_files.bounded_lines(lines.readline, path, opened, remedy), 1):
                yield line.removeprefix("\ufeff") if number == 1 else line
    except FileNotFoundError:
        raise ValueError(f"{path}: no such {what}") from None
    except UnicodeError as error:
        raise ValueError(f"{path}:{number + 1}: not valid {encoding or 'UTF-8'}: {error}{OTHER}") from None
    except packed_files.DAMAGE as error:
        raise ValueError(f"{path}:{number + 1}: the compressed file is damaged or cut off here ({error})") from None


def is_packed_inside(path: str) -> bool:
    """Returns whether a file begins as compressed files do."""
    return packed_files.kind_of(path) in packed_files.OPENERS


def head_of(path: str) -> bytes:
    """Returns the first bytes of a file, decompressed; b"" if it is damaged."""
    if is_packed_inside(path):
        return packed_files.read_head(path, START)
    with open_bytes(path) as file:
        return file.read(START)


def other_encoding(path: str) -> str:
    """Returns a hint at the encoding of a file that is not UTF-8, with the flag for it."""
    try:
        name = encoding_of(path)
    except OptionsNeededError as error:
        name = error.readings[0]["encoding"]
    except ValueError:  # lines of two encodings
        name = ""
    return f"; it may be {name}: --encoding={name} reads it, or another encoding" if name else OTHER


def encoding_of(path: str) -> str:
    """Returns the encoding of a text file, detected from its bytes; "" for UTF-8, even if some lines are damaged.

    The evidence is a byte-order mark, zero bytes, or marks between bytes below 128; otherwise two detectors must agree,
    or OptionsNeededError is raised. Raises ValueError for lines of two encodings, and for a NUL byte in a text.
    """
    stamp = modified(path)  # 0: its store does not say it
    return (_encoding_of if stamp else _encoding_of.__wrapped__)(path, size_of(path), stamp)


@functools.lru_cache(maxsize=64)  # a table is opened several times, and each time all of it would be read
def _encoding_of(path: str, size: int, stamp: int) -> str:
    start = head_of(path)
    if start.startswith(tuple(BINARY)):
        return ""
    for mark, name in BYTE_ORDER_MARKS.items():
        if start.startswith(mark):
            return name
    if name := _without_mark(start):
        return name
    if not is_packed_inside(path) and _is_whole(path):
        return ""
    in_utf8, other_lines, sure = _divided(path)
    if len(other_lines) <= in_utf8:
        return ""
    sample = _without_cut("".join(line for _, line in other_lines[:MOST_LINES]).encode("latin-1"))
    words = b"".join(word for word in WORD.findall(sample) if not word.isascii())
    is_latin = 2 * sum(byte < 0x80 for byte in words) >= len(words)
    if in_utf8 and (is_latin or sure[0] > MOST_BY_CHANCE):
        number, line = other_lines[0]
        raise ValueError(
            f"{path}: lines of two encodings: line {sure[1]} is in UTF-8, {sure[2].strip()!r:.50}, line {number} "
            f"is not, {line.encode('latin-1').strip()!r:.50}; save it in one encoding"
        )
    return _likely_encoding(path, sample, LATIN if is_latin else (*LATIN, *OTHERS))


def _without_cut(sample: bytes) -> bytes:
    """Returns a sample that may end within a character of several bytes without its end: such characters have none of
    these bytes.
    """
    if len(sample) < MOST_SAMPLE:
        return sample
    return sample[: max(map(sample.rfind, (b"\n", b" ", b","))) + 1] or sample


def _divided(path: str) -> tuple[int, list[tuple[int, str]], tuple[int, int, str]]:
    """Returns how many lines are UTF-8 beyond ASCII, the others with their numbers, and the surest line of UTF-8: its
    bytes beyond one a character, its number, its text.
    """
    other_lines: list[tuple[int, str]] = []
    in_utf8, size, sure = 0, 0, (0, 0, "")
    for number, line in enumerate(text_lines(path, "latin-1"), 1):  # each byte as a character
        if "\0" in line:
            raise ValueError(f"{path}:{number}: expected text, got a NUL byte; --encoding=utf-8 reads it as text")
        if line.isascii():
            continue
        try:
            text = line.encode("latin-1").decode("utf-8")
            in_utf8, sure = in_utf8 + 1, max(sure, (len(line) - len(text), number, text[:MOST_SAMPLE]))
        except UnicodeDecodeError:
            other_lines.append((number, line[: MOST_SAMPLE - size]))
            size += len(other_lines[-1][1])
            if len(other_lines) > in_utf8 + MOST_LINES:
                break
    return in_utf8, other_lines, sure


def _is_whole(path: str) -> bool:
    """Whether a file is UTF-8 without zero bytes."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    with open_bytes(path) as file:
        try:
            while block := file.read(1 << 20):
                decoder.decode(block)
                if b"\0" in block:
                    return False
            return not decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return False


def _likely_encoding(path: str, sample: bytes, usual: Sequence[str]) -> str:
    """Returns the encoding of lines that are no UTF-8, one of the `usual` ones, "" if none of these reads them.

    `chardet` knows which letters follow each other in a language, `charset-normalizer` what nobody writes.
    """
    import chardet
    from charset_normalizer import from_bytes

    guesses = chardet.detect_all(sample, ignore_threshold=True, include_encodings=usual, compat_names=False)
    guesses.sort(key=lambda guess: (-round(guess["confidence"], 2), guess["encoding"] != LATIN[0]))
    matches = list(from_bytes(sample, cp_isolation=[name.replace("-", "_") for name in usual]))
    if not matches or not (guess := guesses[0]["encoding"]):
        return ""
    likely = [match for match in matches if match.chaos <= matches[0].chaos + SAME_CHAOS]
    if any(str(match) == sample.decode(guess, "replace") for match in likely):
        return guess
    candidates = dict.fromkeys([guess, likely[0].encoding, LATIN[0]])
    raise OptionsNeededError(
        f"{path}: not UTF-8, and its encoding is not clear", [{"encoding": name} for name in candidates]
    )


def _without_mark(start: bytes) -> str:
    """Returns the encoding of bytes that seem to be UTF-16 or UTF-32 without a byte-order mark, or an encoding of bytes
    below 128, else "".

    In UTF-16 ASCII characters are a zero byte and another one, always in the same order; a text may also have
    characters such as U+4E00.
    """
    for name, sign in SEVEN_BITS.items() if start.isascii() else ():
        if len(sign.findall(start)) > 1 and not (text := _decoded(start, name)).isascii():
            is_text = name != "utf-7" or all(map(str.isalpha, re.sub(r"[\x00-\x7f\W]", "", text)))
            return name if is_text else ""
    for name, high, next_high in (("utf-32-le", 3, 2), ("utf-32-be", 0, 1)):
        if len(start) > 7 and not any(start[high::4]) and 2 * start[next_high::4].count(0) > len(start) / 4:
            return name
    units = start[: len(start) // 2 * 2]
    for name, place in (("utf-16-le", 1), ("utf-16-be", 0)):
        zeros, others = (units[one::2].count(0) for one in (place, 1 - place))
        if zeros > others and zeros >= max(2.0, LEAST_ZEROS * len(units) / 2):
            text = _decoded(units, name)
            if "\n" in text or (text and len(start) == START):
                return name
    return ""


def _decoded(start: bytes, encoding: str) -> str:
    """The text of the first bytes of a file, "" if they are not in an encoding."""
    try:
        return codecs.getincrementaldecoder(encoding)().decode(start)
    except UnicodeDecodeError:
        return ""
