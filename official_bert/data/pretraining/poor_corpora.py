"""Corpora that are unfit for next-sentence prediction, and the warnings about them."""

from collections.abc import Mapping

import numpy as np

from official_bert.data.pretraining.generator import shard_documents
from official_bert.data.pretraining.instances import InstanceConfig
from official_bert.data.pretraining.token_store import TokenStore

POOR = {  # the corpus, and the effect on the labels
    "one document": "is one document (a blank line ends a document): 'random' next segments are drawn from that "
    "document "
    "itself, and labelled 1 (random) even if they follow",
    "single sentences": "has documents of a single sentence only (one sentence a line is expected): no segment has a "
    "next one, "
    "so all next-sentence labels are 1 (random)",
    "empty": "has no document: its file holds no record",
}


def poverty(documents: int, sentences: int) -> str:
    """Returns the key of POOR for a corpus or shard with these numbers of documents and sentences, "" if it is fit."""
    if documents < 2:
        return "one document" if documents else "empty"
    return "single sentences" if sentences == documents else ""


def poor_shards(store: TokenStore, num_shards: int) -> dict[int, str]:
    """Returns {shard: key of POOR} for the poor shards."""
    sentences = np.diff(store.document_starts)
    documents = (shard_documents(store.file_starts, shard, num_shards) for shard in range(num_shards))
    kinds = (poverty(len(numbers), int(sentences[numbers].sum())) for numbers in documents)
    return {shard: kind for shard, kind in enumerate(kinds) if kind}


def label_warnings(config: InstanceConfig, poor: Mapping[int, str], num_shards: int) -> list[str]:
    """Returns warnings about the next-sentence labels of poor shards, a line for each kind; `num_shards` 0: the whole
    corpus.
    """
    if not num_shards:
        return [f"the corpus {POOR[kind]}" for kind in poor.values() if config.sentence_task == "nsp"]
    lines = []
    for kind, why in POOR.items():
        shards = sorted(shard for shard, shard_kind in poor.items() if shard_kind == kind)
        if shards and (kind == "empty" or config.sentence_task == "nsp"):
            named = ", ".join(map(str, shards[:5])) + (", ..." if len(shards) > 5 else "")
            lines.append(
                f"{len(shards)} of {num_shards} output files (number {named}), each from its own documents: "
                f"each {why}; fewer files have more documents each"
            )
    return lines
