"""Checks before the work begins that the disk has room for a corpus."""

from collections.abc import Sequence

from official_bert.data.raw_text import containers
from official_bert.long_work import preflight

# Times the plain text that is read: the output 0.97 to 1.0, cleaned text of the work folder 0.48 to 0.68, hashes of
# lines 0.03 to 0.07.
LIKELY, LEAST = 1.6, 1.5
OF_A_MIXTURE = 1.0  # so much more: its documents wait until the sizes of all languages are known
LEAST_OF_ANY = 0.25  # times the input of which nobody knows how much is text, and how much of that is kept
LOOKED_AT = 32  # files


def check_disk_of_corpus(
    inputs: Sequence[str], size: int, place: str, work_folder: str, filters: Sequence[str]
) -> None:
    """Prints the disk space that a corpus of `inputs` needs in the folder `place`, if that is much of the free space.

    `size` is the size of the input files in bytes. The files that a stopped run left in `work_folder` are subtracted.
    `filters` are the flags that leave out or repeat text. Raises ValueError if the disk is too small: below LEAST times
    the input for plain text without filters, below LEAST_OF_ANY times otherwise.
    """
    if not inputs:  # standard input
        print(f"disk: the corpus and its work folder take about {LIKELY} times the text of standard input", flush=True)
        return
    packed = not all(map(_is_plain, inputs[:: max(1, len(inputs) // LOOKED_AT)]))
    doubts = ["compressed files and JSON lines by size on disk"] * packed + [f"before {', '.join(filters)}"] * bool(
        filters
    )
    times = LIKELY + OF_A_MIXTURE * bool({"--mix", "--smoothing"} & {*filters})
    there = preflight.bytes_in(work_folder)
    least = int(size * (LEAST_OF_ANY if doubts else LEAST))
    preflight.check_disk({place: max(0, least - there)}, "the corpus and its work folder")
    preflight.announce_disk(
        {place: max(0, int(size * times) - there)},
        f"the corpus and its work folder, {times} times the input" + (f" ({'; '.join(doubts)})" if doubts else ""),
    )


def _is_plain(path: str) -> bool:
    """Returns whether a file is plain text: not compressed, no table, no JSON lines with other values."""
    return containers.kind_of(path) == "text" and not containers.read_head(path, 64).lstrip(
        b"\xef\xbb\xbf \n\r\t"
    ).startswith(b"{")
