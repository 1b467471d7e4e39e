"""Notices files that were probably not meant to be read together: files of two generations, a text and the part of it that is held out."""

import collections
import os
import re
from collections.abc import Sequence

SHARD = re.compile(r"(.+)-\d{5}-of-(\d{5})")
HELD_OUT = "held_out-"  # begins the names of the documents that prepare_corpus holds out


def doubts(paths: Sequence[str]) -> list[str]:
    """Returns a line for each reason to doubt that the files belong together; [] if there is none."""
    sizes: dict[str, set[int]] = collections.defaultdict(set)
    for path in paths:
        if shard := SHARD.fullmatch(path):
            sizes[shard[1]].add(int(shard[2]))
    lines = [f"{stem}: files of {' and of '.join(map(str, sorted(found)))} are read together (-of-{min(found):05} and "
             f"-of-{max(found):05}); are those of an earlier command among them?" for stem, found in sizes.items() if len(found) > 1]
    return lines + [f"{path}: documents that were held out are read together with the others" for path in paths
                    if os.path.basename(path).startswith(HELD_OUT) and {_rest(path)} & {*paths, *sizes}]


def _rest(path: str) -> str:
    """The text beside which a file of documents was held out."""
    return os.path.join(os.path.dirname(path), os.path.basename(path).removeprefix(HELD_OUT))
