r"""Adds hard negatives to pairs: passages that a search ranks high for a query and that do not answer it.

    python tools/mine_negatives.py --train_file=train.tsv --output_file=mined.jsonl --first_rank=10 \
        --last_rank=60 --negatives=5
    python tools/mine_negatives.py --train_file=set/qrels/train.tsv --model=runs/search --margin=0.05 \
        --output_file=mined.jsonl

Without --model, BM25 ranks the passages; with it, the cosines of vectors from a run, a checkpoint or an exported model
rank them. The passages are the second texts of all pairs and those of --corpus_file, or the corpus of a BEIR collection
(--train_file is then its judgements). --cross_encoder leaves out passages with a score above the answer's, and writes
its `scores`. `--task=retrieval` and `--task=reranking` read the output with options.negative_columns=[negatives] (and
options.teacher_columns=[scores]).
"""

from official_bert.command_line import from_flags, refuse_unread, run_main

import json
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from absl import flags
from tqdm import tqdm

from official_bert.long_work import preflight
from official_bert.search.collections import judgements_of
from official_bert.search.rows import SearchColumns
from official_bert.storage.files import written_whole
from official_bert.tools.mining.rules import MiningRules

if TYPE_CHECKING:
    from official_bert.data.labelled.labelled_texts import LabelledTexts
    from official_bert.interface.predictor import Predictor

FLAGS = flags.FLAGS
flags.DEFINE_string(
    "train_file",
    None,
    "Pairs (TSV, CSV, JSON lines, Parquet), or a collection like BEIR's: its folder "
    "(qrels/train.tsv), or other judgements, qrels/*.tsv.",
    required=True,
)
flags.DEFINE_string(
    "output_file", None, "JSON lines: text, text_pair, negatives, and scores with --cross_encoder.", required=True
)
flags.DEFINE_string("text_column", "text", "The column of the queries.")
flags.DEFINE_string("text_pair_column", "text_pair", "The column of the passages that answer them.")
flags.DEFINE_string("corpus_file", "", "A table of further passages.")
flags.DEFINE_string("corpus_column", "text", "The column of the passages in --corpus_file.")
flags.DEFINE_string("model", "", "A run, a checkpoint or an exported model that gives vectors; without it, BM25 ranks.")
flags.DEFINE_string("vocab_file", "", "The vocabulary of --model, if it is not beside it.")
flags.DEFINE_string(
    "faiss_index",
    "",
    "A FAISS index, such as HNSW32, instead of products with all passages (the extra 'faiss').",
)
flags.DEFINE_integer(
    "first_rank", 1, "The first rank to use, counted over passages that do not answer the query.", lower_bound=1
)
flags.DEFINE_integer("last_rank", 100, "The last rank to use.", lower_bound=1)
flags.DEFINE_integer("negatives", 5, "Negatives for each pair.", lower_bound=1)
flags.DEFINE_bool("sample", False, "Draw the negatives at random from these ranks, instead of taking the first ones.")
flags.DEFINE_float("margin", None, "Least difference between the answer's score and a negative's.")
flags.DEFINE_float("relative_margin", None, "The same margin as a share of the answer's score.")
flags.DEFINE_string(
    "cross_encoder",
    "",
    "A reranker, or a published cross-encoder; passages that it scores above the answer are not used.",
)
flags.DEFINE_float("cross_encoder_margin", 0.0, "Least difference between its scores of the answer and of a negative.")
flags.DEFINE_integer("batch_size", 32, "Texts in a batch.", lower_bound=1)
flags.DEFINE_integer("random_seed", 12345, "The seed of --sample.")


def main(_: list[str]) -> None:
    """Ranks all passages for each query, and writes each pair with its negatives."""
    rules = from_flags(MiningRules, FLAGS)
    refuse_unread(
        FLAGS,
        [
            (["vocab_file", "faiss_index"], bool(FLAGS.model), "--model"),
            (["cross_encoder_margin"], bool(FLAGS.cross_encoder), "--cross_encoder"),
            (["corpus_column"], bool(FLAGS.corpus_file), "--corpus_file"),
        ],
    )
    train_file = judgements_of(FLAGS.train_file, "train")
    preflight.check_outputs([FLAGS.output_file], [train_file, FLAGS.corpus_file])
    from official_bert.interface.predictor import Predictor, ServingOptions
    from official_bert.tools.mining import negatives

    columns = SearchColumns(text=FLAGS.text_column, text_pair=FLAGS.text_pair_column)
    material = negatives.read_material(train_file, FLAGS.corpus_file, columns, FLAGS.corpus_column)
    print(f"{len(material.rows)} pairs, {len(material.queries)} queries, {len(material.passages)} passages")
    cross_encoder = _load_cross_encoder(FLAGS.cross_encoder) if FLAGS.cross_encoder else None
    depth = FLAGS.last_rank + max(map(len, _answers(material.rows).values())) + bool(material.own)
    if FLAGS.model:
        predictor = Predictor(FLAGS.model, ServingOptions(head="embeddings"), FLAGS.vocab_file)
        ranking = negatives.rank_by_vectors(
            material,
            depth,
            predictor,
            FLAGS.batch_size,
            FLAGS.faiss_index,
            os.path.dirname(os.path.abspath(FLAGS.output_file)),
            lambda parts: tqdm(parts, desc="passages", disable=len(parts) < 2),
        )
    else:
        ranking = negatives.rank_by_words(material, depth)
    mined = negatives.mine(
        material, ranking, rules, FLAGS.random_seed, cross_encoder, FLAGS.cross_encoder_margin, FLAGS.batch_size
    )
    print(_write(FLAGS.output_file, mined, rules))


def _load_cross_encoder(path: str) -> "Predictor":
    """Returns a reranker. Raises ValueError for a model that does not score two texts."""
    from official_bert.interface.predictor import Predictor

    cross_encoder = Predictor(path, pairs=_reads_pairs(path))
    if "score" not in cross_encoder.outputs or len(cross_encoder.inputs) != 2:
        raise ValueError(
            f"--cross_encoder={path}: expected a model that scores two texts, got one that gives "
            f"{', '.join(cross_encoder.outputs)}"
        )
    return cross_encoder


def _write(path: str, rows: Iterable, rules: MiningRules) -> str:
    """Writes the rows that have negatives; returns a line about them. Raises ValueError if no row has any."""
    counts = []
    with written_whole(path) as file:
        for row in rows:
            counts.append(len(row["negatives"]))
            if row["negatives"]:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
        if not any(counts):
            raise ValueError(
                f"--output_file={path}: no pair has a negative under these rules (ranks {rules.first_rank} to "
                f"{rules.last_rank}, margins); nothing is written"
            )
    written = sum(map(bool, counts))
    return (
        f"{path}: {written} pairs with {sum(counts) / written:.1f} negatives on average; "
        f"{len(counts) - written} without one are not written"
    )


def _answers(rows: "LabelledTexts") -> dict[str, list[str]]:
    """Returns for each query its answers and the query itself, which may be a passage too."""
    answers: dict[str, list[str]] = {}
    for query, positive in rows.pairs():
        answers.setdefault(query, [query]).append(positive)
    return answers


def _reads_pairs(path: str) -> bool | None:
    """Returns the option with which a published classifier reads two texts; None for runs and exported models, which
    know it.
    """
    from official_bert.run_folder import RunFolder
    from official_bert.serving.loading import exported_folder

    known = exported_folder(path) is not None or RunFolder.holding(path) is not None
    return None if known else True


if __name__ == "__main__":
    run_main(main)
