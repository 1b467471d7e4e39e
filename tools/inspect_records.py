"""Shows the content of pre-training records, and fails if a model cannot be trained on them.

    python tools/inspect_records.py --input_file='train-*.tfrecord' --vocab_file=vocab.txt

`--every=100` reads one record in a hundred, for files of many gigabytes.
"""

from official_bert.command_line import run_main

import collections
import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from absl import flags

from official_bert.data.pretraining.masking import VocabularyFacts
from official_bert.data.pretraining.packing import unpack
from official_bert.data.record_files import records
from official_bert.data.record_files.record_encoding import FRAME_BYTES
from official_bert.long_work import provenance
from official_bert.long_work.progress import Reporter
from official_bert.storage.files import find_files, size_of
from official_bert.text import loading

FLAGS = flags.FLAGS
flags.DEFINE_string("input_file", None, "Record files, plain or gzip: comma-separated paths and globs.", required=True)
flags.DEFINE_string(
    "vocab_file", None, "The vocabulary, or the tokenizer's folder, that made the records.", required=True
)
flags.DEFINE_integer("every", 1, "Check only one record in N, spread over each file.", lower_bound=1)
flags.DEFINE_integer("num_examples", 3, "Records to print as text.")
flags.DEFINE_integer("num_words", 20, "Number of most frequent masked words to print.")

BINS = 8  # of the length histogram
BAR = 40  # characters of its longest bar
Values = Mapping[str, np.ndarray]


class Findings:
    """Counts over all records."""

    def __init__(self, facts: VocabularyFacts, max_seq_length: int):
        self.facts, self.max_seq_length = facts, max_seq_length
        self.records = self.tokens = self.unknown = self.two_segments = self.label_ones = 0
        self.predicted = self.masked = self.unchanged = self.rows = 0
        self.lengths = np.zeros(max_seq_length + 1, np.int64)
        self.predictions: collections.Counter = collections.Counter()
        self.words: collections.Counter = collections.Counter()

    def add(self, values: Values, rows: int, unknown_id: int) -> None:
        """Counts a batch of instances, which fill this number of rows."""
        self.rows += rows
        lengths = values["input_mask"].sum(axis=1)
        self.records += len(lengths)
        self.tokens += int(lengths.sum())
        self.lengths += np.bincount(lengths, minlength=self.max_seq_length + 1)
        self.unknown += int((values["input_ids"] == unknown_id).sum())
        self.two_segments += int(values["segment_ids"].any(axis=1).sum())
        self.label_ones += int(values["next_sentence_labels"].sum())
        if "masked_lm_ids" in values:
            self._add_masks(values)

    def _add_masks(self, values: Values) -> None:
        used = values["masked_lm_weights"] > 0
        now = np.take_along_axis(values["input_ids"], values["masked_lm_positions"], axis=1)[used]
        originals = values["masked_lm_ids"][used]
        self.predicted += len(originals)
        self.masked += int((now == self.facts.mask_id).sum())
        self.unchanged += int((now == originals).sum())
        self.predictions.update(used.sum(axis=1).tolist())
        ids, counts = np.unique(originals, return_counts=True)
        self.words.update(dict(zip(ids.tolist(), counts.tolist())))


def refuse(path: str, numbers: Sequence[int], wrongs: Mapping[str, np.ndarray]) -> None:
    """Raises ValueError with the number of the first bad record; `wrongs` maps messages to bool [B]."""
    for wrong, bad in wrongs.items():
        if bad.any():
            row = int(np.argmax(bad))
            raise ValueError(f"{path}: record {numbers[row]}: {wrong}")


def check(path: str, numbers: Sequence[int], values: Values, facts: VocabularyFacts) -> None:
    """Raises ValueError for records on which a model cannot be trained."""
    ids, mask, segments = values["input_ids"], values["input_mask"], values["segment_ids"]
    lengths = mask.sum(axis=1)
    places = np.arange(ids.shape[1])[None]
    refuse(
        path,
        numbers,
        {
            f"a token id beyond the vocabulary of {facts.size}": ((ids < 0) | (ids >= facts.size)).any(axis=1),
            "input_mask is not ones and then zeros": (mask != (places < lengths[:, None])).any(axis=1),
            "fewer than 3 tokens": lengths < 3,
            "there is a token or a segment where input_mask is 0": ((mask == 0) & ((ids != 0) | (segments != 0))).any(
                axis=1
            ),
            "a segment id is neither 0 nor 1": ((segments < 0) | (segments > 1)).any(axis=1),
            "it does not begin with [CLS]": ids[:, 0] != facts.cls_id,
            "it does not end with [SEP]": np.take_along_axis(ids, np.maximum(lengths, 1)[:, None] - 1, 1)[:, 0]
            != facts.sep_id,
            "its next-sentence label is neither 0 nor 1": (values["next_sentence_labels"] // 2 != 0).any(axis=1),
        },
    )
    if "masked_lm_ids" in values:
        check_masks(path, numbers, values, facts, lengths)


def check_packed(path: str, numbers: Sequence[int], rows: Values) -> None:
    """Raises ValueError for packed rows whose instances do not follow one another, each with its own positions."""
    ids, weights, begins = rows["instance_ids"], rows["instance_weights"], rows["cls_positions"]
    places, count, slots = np.arange(ids.shape[1]), (weights > 0).sum(axis=1), range(weights.shape[1])
    # 0 for one that is not there
    firsts = np.array([[int(np.argmax(row == slot + 1)) for slot in slots] for row in ids])
    refuse(
        path,
        numbers,
        {
            "its instances are not numbered 1, 2, ... from the left, then 0 where input_mask is 0": (
                np.diff(np.where(rows["input_mask"] > 0, ids, weights.shape[1] + 1), axis=1) < 0
            ).any(axis=1)
            | ((ids > 0) != (rows["input_mask"] > 0)).any(axis=1)
            | (ids.max(axis=1) != count),
            "an instance weight is neither 0 nor 1, or a 0 stands before a 1": (
                weights != (np.array(slots) < count[:, None])
            ).any(axis=1),
            "a place of [CLS] is not where its instance begins": (firsts != begins).any(axis=1),
            "a position does not count from the beginning of its instance": (
                rows["position_ids"]
                != np.where(ids > 0, places - np.take_along_axis(begins, np.maximum(ids - 1, 0), axis=1), 0)
            ).any(axis=1),
        },
    )


def check_masks(path: str, numbers: Sequence[int], values: Values, facts: VocabularyFacts, lengths: np.ndarray) -> None:
    """Raises ValueError for records whose predictions do not fit their tokens."""
    positions, originals, weights = (values[f"masked_lm_{name}"] for name in ("positions", "ids", "weights"))
    used = weights > 0
    special = np.isin(originals, [facts.cls_id, facts.sep_id]) & used
    refuse(
        path,
        numbers,
        {
            "a masked id beyond the vocabulary": ((originals < 0) | (originals >= facts.size)).any(axis=1),
            "a masked position is not at a token": ((positions < 0) | (positions >= lengths[:, None])).any(axis=1),
            "a weight is neither 0 nor 1": ((weights != 0) & (weights != 1)).any(axis=1),
            "no token is to be predicted": ~used.any(axis=1),
            "masked positions do not ascend": ((np.diff(positions, axis=1) <= 0) & used[:, 1:]).any(axis=1),
            "[CLS] or [SEP] is to be predicted": special.any(axis=1),
        },
    )


def show(values: Values, tokens: Mapping[int, str]) -> str:
    """Returns a record as text; a prediction is `[input token|token to predict]`."""
    length = int(values["input_mask"].sum())
    pieces = [tokens.get(int(index), "?") for index in values["input_ids"][:length]]
    if "masked_lm_ids" in values:
        for place, original, weight in zip(*(values[f"masked_lm_{name}"] for name in ("positions", "ids", "weights"))):
            if weight:
                pieces[place] = f"[{pieces[place].strip('[]<>')}|{tokens.get(int(original), '?')}]"
    return f"  label {int(values['next_sentence_labels'][0])}: {' '.join(pieces)}"


def report(
    findings: Findings, counts: Mapping[str, int], tokens: Mapping[int, str], num_words: int, every: int
) -> None:
    """Prints the counts; `every` tells that one record in so many was read."""
    for path, count in counts.items():
        sentence_task = provenance.read_origin(path).get("sentence_task")
        print(
            f"{path}: {count} records"
            + f" looked at, one in {every}" * (every > 1)
            + f", made with --sentence_task={sentence_task}" * (sentence_task is not None)
        )
    packed = f" in {findings.rows} rows" if findings.rows < findings.records else ""
    print(
        f"{findings.records} records{packed} of {findings.max_seq_length} tokens; "
        f"{findings.tokens / findings.records:.1f} used, "
        f"{1 - findings.tokens / (findings.rows * findings.max_seq_length):.1%} padding, "
        f"{findings.unknown / findings.tokens:.2%} [UNK]"
    )
    edges = np.linspace(0, findings.max_seq_length + 1, BINS + 1).astype(int)
    shares = [findings.lengths[first:last].sum() / findings.records for first, last in itertools.pairwise(edges)]
    for first, last, share in zip(edges, edges[1:], shares):
        print(f"  {first:>5} to {last - 1:>5} tokens {share:>6.1%} {'#' * round(BAR * share / max(shares))}")
    print(
        f"two segments: {findings.two_segments / findings.records:.1%} of the records; label 1 (random or swapped): "
        f"{findings.label_ones / findings.records:.1%}"
    )
    if not findings.predicted:
        print("the records have no masks: training masks them when it reads them")
        return
    changed = findings.predicted - findings.masked - findings.unchanged
    print(
        f"predictions: {findings.predicted / findings.records:.1f} per record ({min(findings.predictions)} to "
        f"{max(findings.predictions)}), {findings.predicted / findings.tokens:.1%} of the tokens; "
        f"{findings.masked / findings.predicted:.1%} [MASK], {findings.unchanged / findings.predicted:.1%} kept, "
        f"{changed / findings.predicted:.1%} random"
    )
    words = (
        f"{tokens.get(index, '?')} {count / findings.predicted:.1%}"
        for index, count in findings.words.most_common(num_words)
    )
    print(f"most frequent: {', '.join(words)}")


def batches(path: str, features: Sequence[records.Feature], every: int) -> Iterator[tuple[range, Values]]:
    """Yields (record numbers, values) of each batch of a file, one record in `every`."""
    for first, values in records.read_batches(path, features, every=every):
        yield range(first, first + every * len(values["input_ids"]), every), values


def share_read(path: str, count: int) -> float:
    """Returns the estimated share of a file that `count` records take if all are as long as the first; 0 for compressed
    files.
    """
    if records.is_gzip(path):
        return 0.0
    first = len(next(records.read_records(path))) + FRAME_BYTES
    return min(1.0, count * first / size_of(path))


def inspect(input_file: str, vocab_file: str, every: int = 1, num_examples: int = 3, num_words: int = 20) -> None:
    """Reads all records, or one in `every`, and prints their statistics. Raises ValueError for bad records."""
    paths, tokenizer = find_files(input_file, "--input_file"), loading.load(vocab_file)
    facts, tokens = VocabularyFacts.of(tokenizer), tokenizer.inv_vocab
    counts = dict.fromkeys(paths, 0)
    filled = [path for path in paths if records.holds_records(path)]  # a shard without documents has no record
    if not filled:
        raise ValueError(f"{input_file}: no record in these files")
    for path in filled:
        provenance.check_vocabulary(path, provenance.read_origin(path), facts.digest)
    features = records.file_features(filled[0])
    findings = Findings(facts, features[0].length)
    examples: list[Values] = []
    with Reporter() as reporter:
        reporter.show("reading", 0)
        for number, path in enumerate(filled):
            if (other_features := records.file_features(path)) != features:
                raise ValueError(
                    f"{path}: expected records as in {filled[0]}, "
                    f"{[(feature.name, feature.length) for feature in features]}, "
                    f"got {[(feature.name, feature.length) for feature in other_features]}"
                )
            for numbers, rows in batches(path, features, every):
                values, of = rows, np.arange(len(numbers))
                if "instance_ids" in rows:
                    check_packed(path, numbers, rows)
                    values, of = unpack(rows)
                check(path, [numbers[row] for row in of], values, facts)
                findings.add(values, len(numbers), facts.unk_id)
                counts[path] += len(numbers)
                wanted = max(0, num_examples - len(examples))
                examples += [
                    {name: value[row] for name, value in values.items()} for row in range(min(wanted, len(of)))
                ]
                reporter.show("reading", min(0.999, (number + share_read(path, numbers.stop)) / len(filled)))
        reporter.show("reading", 1)
    report(findings, counts, tokens, num_words, every)
    for example in examples:
        print(show(example, tokens))
    if findings.two_segments and findings.label_ones in (0, findings.records):
        raise ValueError(
            f"{input_file}: every next-sentence label is {int(findings.label_ones > 0)}: nothing can be "
            "learned from them (documents of one sentence? see the generator's warning)"
        )


def main(_: list[str]) -> None:
    """Inspects the records that the flags name."""
    inspect(FLAGS.input_file, FLAGS.vocab_file, FLAGS.every, FLAGS.num_examples, FLAGS.num_words)


if __name__ == "__main__":
    run_main(main)
