"""Sequence packing: several instances in one row, so that few of its tokens are padding (Krell et al. 2021).

N instances, B rows of S tokens with room for K instances and Q predictions each.

Which instances share a row is decided for 8,192 neighbouring records at a time, the longest first; each joins the row
that has the most room left (shortest-pack-first; the rows are kept by the room that they have left, as a histogram, so
this takes no search). The decision depends on the lengths alone: every epoch has the same rows, in another order.

In a row, positions begin anew with each instance, `instance_ids` are 1, 2, ... and 0 for padding, and tokens attend
within their instance only. So the losses are those of the same instances in rows of their own.

The lengths of records are counted once: `.train.tfrecord.record_lengths` lies beside `.train.tfrecord.record_index` and
is used as long as that index is.
"""

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Mapping

import numpy as np
import tensorflow as tf
from absl import logging

from official_bert.data.batches.sources import RowGroups
from official_bert.data.record_files import record_index, records
from official_bert.data.record_files.indexed_records import BrokenRecordError, IndexedRecords
from official_bert.data.record_files.record_index import RecordIndex
from official_bert.long_work.progress import Reporter
from official_bert.text.compiling import compiled

AT_ONCE = 8192  # records that are packed together
SUFFIX = ".record_lengths"
MEASURED_AT_ONCE = 2048  # records
SHOWN_FROM = 200_000  # records: fewer take about a second
ROW = np.dtype("<i4")
Batch = dict[str, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class Packing:
    """Packs instances of up to `max_seq_length` tokens and `max_predictions_per_seq` predictions into rows of as many
    tokens.

    `features` is the table of their records. `budgets` [S + 1] are the predictions of an instance by its tokens, for
    records without masks.
    """

    features: tuple[records.Feature, ...]
    max_seq_length: int
    max_predictions_per_seq: int
    max_instances_per_row: int
    budgets: np.ndarray | None = None

    @property
    def predictions_per_row(self) -> int:
        """Q: each instance rounds its share of predictions up, so a row has room for one extra per instance."""
        return predictions_per_row(self.max_predictions_per_seq, self.max_instances_per_row)

    @property
    def row_features(self) -> tuple[records.Feature, ...]:
        """The features of packed rows."""
        return records.packed_features(self.max_seq_length, self.predictions_per_row, self.max_instances_per_row)

    def groups(self, indexed: IndexedRecords) -> RowGroups:
        """Decides which records share a row. Raises ValueError for broken records."""
        tokens, predictions = record_lengths(indexed, self.features).T
        if self.budgets is not None:
            predictions = self.budgets[tokens]
        # An instance takes the larger of its shares of the tokens and of the predictions of a row.
        shares = -(-predictions.astype(np.int64) * self.max_seq_length // self.predictions_per_row)
        sizes = np.clip(np.maximum(tokens, shares), 1, self.max_seq_length)
        counts, lengths, members = [], [], []
        for first, end in itertools.pairwise(itertools.accumulate(indexed.counts, initial=0)):
            counts.append(0)
            for start in range(first, end, AT_ONCE):
                part = pack(sizes[start : min(start + AT_ONCE, end)], self.max_seq_length, self.max_instances_per_row)
                in_row = np.bincount(part)
                # Rows are made longest instance first: neighbours would be alike.
                place = np.random.default_rng(start).permutation(len(in_row))
                members.append(start + np.argsort(place[part], kind="stable"))
                lengths.append(in_row[np.argsort(place)])
                counts[-1] += len(in_row)
        return RowGroups(counts, np.cumsum(np.concatenate([[0], *lengths])), np.concatenate(members))

    def arrange(self, batch: Batch, row: tf.Tensor, rows: int) -> Batch:
        """Returns packed rows: a batch [N,...] with the features of masked records -> a batch [B,...] of
        `packed_features`.

        `row` [N], ascending, is the row of each instance, below `rows`. A row without instances has no real token.
        """
        length, room, slots = self.max_seq_length, self.predictions_per_row, self.max_instances_per_row
        # [N]: the first instance of its row
        firsts = tf.searchsorted(row, row)
        slot = tf.range(tf.size(row)) - firsts  # [N]
        begins = _begin_in_row(tf.reduce_sum(batch["input_mask"], axis=1), firsts)  # [N]
        real, used = batch["input_mask"] > 0, batch["masked_lm_weights"] > 0  # [N,S], [N,P]
        token_places = _places(row, begins, real)
        prediction_places = _places(
            row, _begin_in_row(tf.math.count_nonzero(used, axis=1, dtype=tf.int32), firsts), used
        )

        def by_token(values: tf.Tensor) -> tf.Tensor:
            return tf.scatter_nd(token_places, tf.boolean_mask(values, real), [rows, length])

        def by_prediction(values: tf.Tensor) -> tf.Tensor:
            return tf.scatter_nd(prediction_places, tf.boolean_mask(values, used), [rows, room])

        def by_instance(values: tf.Tensor) -> tf.Tensor:
            return tf.scatter_nd(tf.stack([row, slot], axis=1), values, [rows, slots])

        same = tf.zeros_like(batch["input_ids"])
        return {
            **{name: by_token(batch[name]) for name in ("input_ids", "input_mask", "segment_ids")},
            "position_ids": by_token(same + tf.range(length)),
            "instance_ids": by_token(same + slot[:, None] + 1),
            "cls_positions": by_instance(begins),
            "masked_lm_positions": by_prediction(batch["masked_lm_positions"] + begins[:, None]),
            **{name: by_prediction(batch[name]) for name in ("masked_lm_ids", "masked_lm_weights")},
            "next_sentence_labels": by_instance(batch["next_sentence_labels"][:, 0]),
            "instance_weights": by_instance(tf.ones_like(row, tf.float32)),
        } | (
            {
                "sample_keys": tf.scatter_nd(
                    tf.boolean_mask(row, slot == 0)[:, None],
                    tf.boolean_mask(batch["sample_keys"], slot == 0),
                    [rows, 2],
                )
            }
            if "sample_keys" in batch
            else {}
        )


def predictions_per_row(max_predictions_per_seq: int, max_instances_per_row: int) -> int:
    """Returns the number of predictions that fit in a packed row."""
    return max_predictions_per_seq + max_instances_per_row


def unpack(rows: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Unpacks rows [B,...]: returns the features of masked records [N,...], in the order of the rows, and each one's
    row [N].
    """
    row, slot = np.nonzero(rows["instance_weights"])
    inside = rows["instance_ids"][row] == slot[:, None] + 1  # [N,S]
    begins = rows["cls_positions"][row, slot]
    positions, weights = rows["masked_lm_positions"][row], rows["masked_lm_weights"][row]
    ends = begins + inside.sum(axis=1)
    used = (weights > 0) & (positions >= begins[:, None]) & (positions < ends[:, None])  # [N,Q]

    def to_left(values: np.ndarray, is_value: np.ndarray) -> np.ndarray:
        order = np.argsort(~is_value, axis=1, kind="stable")
        return np.take_along_axis(np.where(is_value, values, 0), order, axis=1)

    instances = {name: to_left(rows[name][row], inside) for name in ("input_ids", "input_mask", "segment_ids")}
    return instances | {
        "masked_lm_positions": to_left(positions - begins[:, None], used),
        "masked_lm_ids": to_left(rows["masked_lm_ids"][row], used),
        "masked_lm_weights": to_left(weights, used),
        "next_sentence_labels": rows["next_sentence_labels"][row, slot][:, None],
    }, row


def _begin_in_row(sizes: tf.Tensor, firsts: tf.Tensor) -> tf.Tensor:
    """Returns where each instance begins in its row: the sizes [N] of those before it; `firsts` [N] are the first of
    its row.
    """
    ends = tf.cumsum(sizes, exclusive=True)
    return ends - tf.gather(ends, firsts)


def _places(row: tf.Tensor, begins: tf.Tensor, is_value: tf.Tensor) -> tf.Tensor:
    """Returns (row, place) of each kept value: those of an instance begin at `begins` [N]; `is_value` [N,X] -> [kept
    values,2].
    """
    rank = tf.cumsum(tf.cast(is_value, tf.int32), axis=1, exclusive=True)
    return tf.boolean_mask(tf.stack([row[:, None] + tf.zeros_like(rank), begins[:, None] + rank], axis=-1), is_value)


@compiled(nogil=True)
def pack(sizes: np.ndarray, room: np.ndarray, most: int) -> np.ndarray:
    """Returns the number of the row of each instance: `sizes` [N] from 1 to `room`, at most `most` instances in a row
    of `room`.

    The longest first (of equal ones in their order), each into the row with the most room left, a new row if it does
    not fit there.
    """
    rows = np.empty(len(sizes), np.int64)
    newest = np.full(room + 1, -1, np.int64)  # of the rows that have so much room left and may take more
    older = np.empty(len(sizes), np.int64)  # the one before it with the same room
    inside = np.zeros(len(sizes), np.int64)
    count = most_left = 0
    for instance in np.argsort(-sizes, kind="mergesort"):
        size = sizes[instance]
        while most_left > 0 and newest[most_left] < 0:
            most_left -= 1
        if most_left >= size:
            row, room_left = newest[most_left], most_left - size
            newest[most_left] = older[row]
        else:
            row, room_left = count, room - size
            count += 1
        rows[instance] = row
        inside[row] += 1
        if room_left > 0 and inside[row] < most:
            older[row] = newest[room_left]
            newest[room_left] = row
            most_left = max(most_left, room_left)
    return rows


def record_lengths(indexed: IndexedRecords, features: tuple[records.Feature, ...]) -> np.ndarray:
    """Returns tokens and predictions of each record, all files one after another: int32 [records,2].

    `features` is the table that the records follow; without masks there are 0 predictions. Raises ValueError for broken
    records.
    """
    measured = tuple(feature for feature in features if feature.name in ("input_mask", "masked_lm_weights"))
    known, lengths = [_known(index) for index in indexed.indices], []
    total, done = sum(count for count, file_lengths in zip(indexed.counts, known) if file_lengths is None), 0
    with contextlib.ExitStack() as stack:
        show = stack.enter_context(Reporter()).show if total >= SHOWN_FROM else lambda *_: None
        for number, (index, file_lengths) in enumerate(zip(indexed.indices, known)):
            if file_lengths is None:
                parts = [np.zeros((0, 2), ROW)]
                for part in _count(indexed, number, measured):
                    parts.append(part)
                    done += len(part)
                    show("measuring records", done / total)
                file_lengths = np.concatenate(parts)
                with contextlib.suppress(OSError):  # it is measured again next time
                    record_index.write_facts(_path(index), index.key, [file_lengths])
            lengths.append(file_lengths)
    return np.concatenate(lengths)


def _path(index: RecordIndex) -> str:
    return index.index_path.removesuffix(record_index.SUFFIX) + SUFFIX


def _known(index: RecordIndex) -> np.ndarray | None:
    """Reads the lengths beside an index; None if there are none that fit."""
    try:
        count = record_index.read_facts(_path(index), index.key, 2 * ROW.itemsize)
        return np.fromfile(_path(index), ROW, 2 * count, offset=record_index.HEADER_BYTES).reshape(-1, 2)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        logging.warning("%s: %s; the lengths of its records are read again", index.path, error)
        return None


def _count(indexed: IndexedRecords, file: int, features: tuple[records.Feature, ...]) -> Iterator[np.ndarray]:
    """Yields the lengths of a file's records, part by part."""
    first, stop = sum(indexed.counts[:file]), sum(indexed.counts[: file + 1])
    for start in range(first, stop, MEASURED_AT_ONCE):
        numbers = np.arange(start, min(start + MEASURED_AT_ONCE, stop))
        try:
            values = records.parse_examples(tf.constant(indexed.read(numbers, indexed.places(numbers))), features)
        except BrokenRecordError as error:
            raise ValueError(f"{indexed.locate(error.number)} {error.reason}") from None
        except tf.errors.InvalidArgumentError as error:
            raise ValueError(
                f"{indexed.locate(start)} or one of the {len(numbers) - 1} after it: {error.message}"
            ) from None
        tokens = tf.reduce_sum(values["input_mask"], axis=1)
        predictions = (
            tf.math.count_nonzero(values["masked_lm_weights"], axis=1) if len(features) > 1 else tf.zeros_like(tokens)
        )
        yield np.stack([tokens.numpy(), predictions.numpy()], axis=1).astype(ROW)
