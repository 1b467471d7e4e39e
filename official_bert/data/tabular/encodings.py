"""The lines of text files, whatever their encoding and packing: the first bytes of a file tell both."""

import codecs
import functools
import io
import re
from collections.abc import Iterator

from official_bert.fields import OptionsNeededError
from official_bert.files import is_file, modified, open_bytes, read_lines, size_of
from official_bert.limits import MOST_SAMPLE

BYTE_ORDER_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
BINARY = (b"PAR1", b"PK\x03\x04")  # Parquet, workbooks
# The encodings of texts that people have, beside UTF-8; of Latin alphabets, the likeliest first; of others.
LATIN = ("cp1252", "cp1250", "iso8859-2", "cp1254", "cp1257", "mac-roman", "cp850")
OTHERS = ("cp1251", "koi8-r", "cp866", "cp1253", "cp1255", "cp1256", "gb18030", "big5", "cp932", "euc-jp", "cp949")
WORD = re.compile(rb"[A-Za-z\x80-\xff]{2,}")
SAME_CHAOS = 0.1  # of `charset-normalizer`: the measures of texts that are about equally likely
MOST_LINES = 2000  # of another encoding, which tell it
START = 1 << 16  # bytes, read to tell an encoding
LEAST_ZEROS = 0.02  # of the code units of UTF-16, those of ASCII: also Chinese has line ends, digits and commas


def text_lines(path: str, encoding: str = "", what: str = "file") -> Iterator[str]:
    """Yields the lines of a file with their ends, decompressed if it is packed; only a line feed ends a line.

    Raises ValueError, naming the file (`what` it should be), for a file that is missing, damaged or not in the
    encoding, by default that of `encoding_of`. A packed file has the bounds of a packed corpus
    (`containers.check_bounds`).
    """
    encoding = encoding or (encoding_of(path) if is_file(path) else "")
    packed = is_file(path) and is_packed_inside(path)
    if not (encoding or packed):
        yield from read_lines(path, what, keep_ends=True)
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
        with (
            containers.open_bytes(path, opened) as file,
            io.TextIOWrapper(
                io.BufferedReader(file),  # type: ignore[type-var]
                encoding=encoding or "utf-8-sig",
                newline="\n",
            ) as lines,
        ):
            while line := lines.readline(containers.LONGEST_LINE + 1 if packed else -1):
                number, unpacked = number + 1, unpacked + len(line)
                if packed:
                    containers.check_bounds(
                        f"{path}:{number}", len(line), unpacked, opened.bytes_read(), "unpack it first"
                    )
                yield line.removeprefix("\ufeff") if number == 1 else line
    except FileNotFoundError:
        raise ValueError(f"{path}: no such {what}") from None
    except UnicodeError as error:
        raise ValueError(f"{path}:{number + 1}: not valid {encoding or 'UTF-8'}: {error}") from None
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
    try:
        name = encoding_of(path)
    except OptionsNeededError as error:
        name = error.readings[0]["encoding"]
    return (
        f"; it may be {name}: --encoding={name} reads it, or another encoding"
        if name
        else ("; --encoding=NAME reads another encoding")
    )


def encoding_of(path: str) -> str:
    """Returns the encoding of a text file by its bytes; "" for UTF-8, also if some lines of it are damaged.

    A byte-order mark tells it, or zero bytes; else two detectors have to agree, or OptionsNeededError is raised.
    """
    stamp = modified(path)  # 0: its store does not say it
    return (_encoding_of if stamp else _encoding_of.__wrapped__)(path, size_of(path), stamp)


@functools.lru_cache(maxsize=64)  # a table is opened several times, and each time all of it would be read
def _encoding_of(path: str, size: int, stamp: int) -> str:
    start = head_of(path)
    if start.startswith(BINARY):
        return ""
    for mark, name in BYTE_ORDER_MARKS.items():
        if start.startswith(mark):
            return name
    if name := _without_mark(start):
        return name
    other_lines, in_utf8, size = [], 0, 0
    for line in text_lines(path, "latin-1"):  # each byte as a character
        if not line.isascii():
            try:
                in_utf8 += bool(line.encode("latin-1").decode("utf-8"))
            except UnicodeDecodeError:
                other_lines.append(line[: MOST_SAMPLE - size])
                size += len(other_lines[-1])
                if len(other_lines) > in_utf8 + MOST_LINES:
                    break
    if len(other_lines) <= in_utf8:
        return ""
    return _likely_encoding(path, _without_cut("".join(other_lines[:MOST_LINES]).encode("latin-1")))


def _without_cut(sample: bytes) -> bytes:
    """Returns a sample that may end within a character of several bytes without its end: such characters have none of
    these bytes.
    """
    if len(sample) < MOST_SAMPLE:
        return sample
    return sample[: max(map(sample.rfind, (b"\n", b" ", b","))) + 1] or sample


def _likely_encoding(path: str, sample: bytes) -> str:
    """Returns the encoding of lines that are no UTF-8, "" if no usual one reads them.

    `chardet` knows which letters follow each other in a language, `charset-normalizer` what nobody writes. In a Latin
    alphabet letters with accents stand between plain ones.
    """
    import chardet
    from charset_normalizer import from_bytes

    words = b"".join(word for word in WORD.findall(sample) if not word.isascii())
    plain = sum(byte < 0x80 for byte in words)
    usual = LATIN if 2 * plain >= len(words) else (*LATIN, *OTHERS)
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
    """Returns `utf-16-le` or `utf-16-be` if bytes seem to be UTF-16 without a byte-order mark, else "".

    Its ASCII characters are a zero byte and another one, always in the same order; a text may also have characters such
    as U+4E00.
    """
    if start.startswith(tuple(BYTE_ORDER_MARKS)):
        return ""
    units = start[: len(start) // 2 * 2]
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
