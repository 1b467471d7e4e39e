"""Mines hard negatives: passages that a search ranks high for a query but that do not answer it."""

import dataclasses
import functools
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from official_bert.data.array_files import make_array
from official_bert.data.labelled import labelled_texts
from official_bert.data.labelled.labelled_texts import LabelledTexts
from official_bert.data.tabular.tables import TableOptions
from official_bert.interface.predictor import Predictor
from official_bert.search import neighbours
from official_bert.search.bm25 import nearest_by_words
from official_bert.search.collections import is_collection, read_collection
from official_bert.search.rows import SearchColumns, read_rows
from official_bert.storage.files import full_disk_names
from official_bert.tools.mining.rules import MiningRules, choose, in_window

TEXTS_AT_ONCE = 4096  # encoded, before the next ones are taken
# scores [Q,K], numbers of passages [Q,K], scores of the rows' positives [N]
Ranking = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Material:
    """Pairs for which hard negatives are mined, and the passages to search."""

    rows: LabelledTexts
    passages: Sequence[str]
    # by query: the passage of its id, which is no negative
    own: Mapping[str, set[str]] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def queries(self) -> dict[str, int]:
        """The number of each different query, in their order."""
        return {text: number for number, text in enumerate(dict.fromkeys(self.rows.text))}

    @functools.cached_property
    def passage_numbers(self) -> dict[str, int]:
        """The number of each passage."""
        return {text: number for number, text in enumerate(self.passages)}


def read_material(train_file: str, corpus_file: str, columns: SearchColumns, corpus_column: str) -> Material:
    """Reads pairs, or the judgements of a collection with its passages. `corpus_file` adds passages.

    Raises ValueError that names file and line for invalid input, and for fewer than two passages.
    """
    own: dict[str, set[str]] = {}
    if is_collection(train_file):
        collection = read_collection(train_file, "refuse", logging.warning)
        rows, passages = collection.pairs(), list(collection.passages)
        for query, number in zip(collection.queries, collection.own):
            own.setdefault(query, set()).update(collection.passages[number : number + 1] if number >= 0 else ())
    else:
        rows = read_rows(train_file, columns, "refuse", TableOptions(), logging.warning)
        passages = list(rows.text_pair or ())
    if corpus_file:
        passages += labelled_texts.texts(TableOptions().read_table(corpus_file, [corpus_column]), corpus_column)
    passages = [text for text in dict.fromkeys(passages) if text.strip()]
    if len(passages) < 2:
        raise ValueError(
            f"{train_file}: expected at least two different passages, got {len(passages)}; --corpus_file adds some"
        )
    return Material(rows, passages, own)


def rank_by_words(material: Material, depth: int) -> Ranking:
    """Returns the ranking by BM25. A positive that is not among the `depth` best passages has the score -inf."""
    scores, numbers = nearest_by_words([*material.queries], material.passages, depth)
    positives = []
    for query, positive in material.rows.pairs():
        row = material.queries[query]
        at = np.flatnonzero(numbers[row] == material.passage_numbers.get(positive, -1))
        positives.append(scores[row, at[0]] if len(at) else -np.inf)
    return scores, numbers, np.array(positives)


def rank_by_vectors(
    material: Material,
    depth: int,
    model: Predictor,
    batch_size: int,
    faiss_index: str,
    folder: str,
    progress: Callable[[Sequence], Iterator],
) -> Ranking:
    """Returns the ranking by the cosines of a model's vectors.

    The passages' vectors are kept in a temporary file in `folder`.
    """
    queries = model.embed([*material.queries], "query", batch_size)
    with tempfile.TemporaryDirectory(dir=folder) as temporary, full_disk_names(folder, temporary):
        shape = (len(material.passages), queries.shape[1])
        vectors = make_array(os.path.join(temporary, "passages.npy"), shape)
        for start in progress(range(0, shape[0], TEXTS_AT_ONCE)):
            part = slice(start, start + TEXTS_AT_ONCE)
            model.embed(material.passages[part], "passage", batch_size, out=vectors[part])
        if faiss_index:
            scores, numbers = neighbours.nearest_by_faiss(queries, vectors, depth, faiss_index)
        else:
            scores, numbers = neighbours.nearest(queries, vectors, depth)
        positives = [
            float(queries[material.queries[query]] @ vectors[material.passage_numbers[positive]])
            for query, positive in material.rows.pairs()
        ]
    return scores, numbers, np.array(positives)


def mine(
    material: Material,
    ranking: Ranking,
    rules: MiningRules,
    seed: int,
    cross_encoder: Predictor | None = None,
    cross_encoder_margin: float = 0.0,
    batch_size: int = 32,
) -> Iterator[dict[str, Any]]:
    """Yields each pair as a row for retrieval and reranking, with the negatives that `rules` allow, if there are any.

    A cross-encoder leaves out passages with a score above the positive's minus the margin, because these probably
    answer the query. The row then also has `scores`, of the positive and of each negative.
    """
    scores, numbers, positives = ranking
    place_of = material.passage_numbers
    answers: dict[str, set[int]] = {}
    for query, positive in material.rows.pairs():
        left_out = {query, *material.own.get(query, ())}
        answers.setdefault(query, {place_of.get(text, -1) for text in left_out}).add(place_of.get(positive, -1))
    for number, (query, positive) in enumerate(material.rows.pairs()):
        row = material.queries[query]
        window = in_window(numbers[row].tolist(), scores[row].tolist(), answers[query], float(positives[number]), rules)
        judged: dict[int, float] = {}
        best = 0.0
        if cross_encoder and window:
            texts = [positive, *(material.passages[place] for place in window)]
            best, *others = [answer["score"] for answer in cross_encoder([(query, text) for text in texts], batch_size)]
            judged = dict(zip(window, others))
            window = [place for place in window if judged[place] <= best - cross_encoder_margin]
        places = choose(window, rules, np.random.default_rng((seed, number)))
        yield {
            "text": query,
            "text_pair": positive,
            "negatives": [material.passages[place] for place in places],
            **({"scores": [best, *(judged[place] for place in places)]} if cross_encoder and places else {}),
        }
