"""The kinds of records: with masks, without them, and packed rows; their features under the options of a run."""

from collections.abc import Mapping

from official_bert.data.pretraining.packing import predictions_per_row
from official_bert.data.record_files import records
from official_bert.tasks.pretraining.options import Options

MASKED, WITHOUT_MASKS, PACKED = "masked", "without masks", "packed"


def kind_of(lengths: Mapping[str, int]) -> str:
    """Returns the kind of records with these features."""
    return PACKED if "instance_ids" in lengths else WITHOUT_MASKS if "word_starts" in lengths else MASKED


def table_of(options: Options, lengths: Mapping[str, int]) -> tuple[records.Feature, ...]:
    """Returns the features that records of this kind have under the options."""
    length, predictions = options.max_seq_length, options.max_predictions_per_seq
    if kind_of(lengths) == WITHOUT_MASKS:
        return records.unmasked_features(length)
    if kind_of(lengths) == MASKED:
        return records.pretraining_features(length, predictions)
    return packed_features(options)


def packed_features(options: Options) -> tuple[records.Feature, ...]:
    """Returns the features of packed rows under the options."""
    most = options.max_instances_per_row
    return records.packed_features(
        options.max_seq_length, predictions_per_row(options.max_predictions_per_seq, most), most
    )


def other_lengths(options: Options, lengths: Mapping[str, int]) -> list[tuple[str, int | str]]:
    """Returns (option, value of the records) for each length in which records differ from the options, and for
    packing.
    """
    held, predictions = {"max_seq_length": lengths.get("input_ids", 0)}, lengths.get("masked_lm_ids", 0)
    if kind_of(lengths) == PACKED:
        if not options.pack:
            return [("pack", "packed rows, several instances in each")]
        held["max_instances_per_row"] = lengths.get("cls_positions", 0)
        predictions -= predictions_per_row(0, lengths.get("cls_positions", 0))
    if kind_of(lengths) != WITHOUT_MASKS:
        held["max_predictions_per_seq"] = predictions
    return [(key, length) for key, length in held.items() if getattr(options, key) != length]
