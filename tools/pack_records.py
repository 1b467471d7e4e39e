"""Packs pre-training records: several instances per row, so that few tokens are padding.

    python tools/pack_records.py --input_file='train-*.tfrecord' --output_dir=packed
    python -m official_bert.run_pretraining --input_file='packed/*' --set=options.pack=true ...

Each input file becomes a packed file of the same name. Training with `options.pack` packs records in the same way while
it reads them, even records without masks. Packed files are useful for other programs, or to pack once for several runs.
"""

from official_bert.command_line import run_main

import os
from collections.abc import Iterator

import numpy as np
import tensorflow as tf
from absl import flags

from official_bert.data.batches.sources import RowGroups
from official_bert.data.pretraining.packing import Packing
from official_bert.data.pretraining.record_writing import OutputFile, make_file_part
from official_bert.data.record_files import records
from official_bert.data.record_files.indexed_records import BrokenRecordError, IndexedRecords
from official_bert.long_work import provenance
from official_bert.long_work.progress import Reporter
from official_bert.storage.files import absolute, exists, find_files, make_folder, written_beside

FLAGS = flags.FLAGS
flags.DEFINE_string(
    "input_file", None, "Record files with masks, plain or gzip: comma-separated paths and globs.", required=True
)
flags.DEFINE_string(
    "output_dir", None, "The folder of the packed files; a name that ends with .gz is compressed.", required=True
)
flags.DEFINE_integer(
    "max_instances_per_row", 8, "Most instances in a row, as options.max_instances_per_row of training.", lower_bound=1
)
AT_ONCE = 512  # rows


def packing_for(path: str, most: int) -> Packing:
    """Returns the packing of a file's records, with at most `most` per row.

    Raises ValueError if they cannot be packed.
    """
    table = records.file_features(path)
    lengths = {feature.name: feature.length for feature in table}
    if "instance_ids" in lengths:
        raise ValueError(f"{path}: its records are packed already")
    if "word_starts" in lengths:
        raise ValueError(
            f"{path}: its records have no masks yet; set config.options.pack to true, which masks and packs them while "
            "they are read"
        )
    return Packing(table, lengths["input_ids"], lengths["masked_lm_ids"], most)


def packed_rows(instances: IndexedRecords, packing: Packing, groups: RowGroups) -> Iterator[dict[str, np.ndarray]]:
    """Yields batches of packed rows in the order of the groups. Raises ValueError for a broken record."""
    count = sum(groups.counts)
    for first in range(0, count, AT_ONCE):
        rows = np.arange(first, min(first + AT_ONCE, count))
        members, bounds = groups.of(rows)
        try:
            batch = records.parse_examples(
                tf.constant(instances.read(members, instances.places(members))), packing.features
            )
        except BrokenRecordError as error:
            raise ValueError(f"{instances.locate(error.number)} {error.reason}") from None
        packed = packing.arrange(batch, tf.constant(np.repeat(rows - first, np.diff(bounds)), tf.int32), len(rows))
        yield {name: value.numpy() for name, value in packed.items()}


def pack_file(
    path: str, target: str, most: int, reporter: Reporter, done: float, share: float
) -> tuple[int, int, float]:
    """Writes a file packed to `target`; returns its instances, its rows, and the share of padding."""
    if not records.holds_records(path):  # a shard without documents
        with written_beside(target) as temporary, OutputFile(temporary, target.endswith(".gz")):
            return 0, 0, 0.0
    packing, instances = packing_for(path, most), IndexedRecords([path])
    groups = packing.groups(instances)
    encoder = records.make_example_encoder(packing.row_features)
    written = tokens = 0
    origin = provenance.read_origin(path)
    with written_beside(target) as temporary:
        with OutputFile(temporary, target.endswith(".gz")) as file:
            for batch in packed_rows(instances, packing, groups):
                file.write(make_file_part(encoder.encode_values(batch), target.endswith(".gz")))
                written, tokens = written + len(batch["input_ids"]), tokens + int(batch["input_mask"].sum())
                reporter.show("packing", min(0.999, done + share * written / sum(groups.counts)))
        if origin:  # before the records have their name, so that a kill cannot separate them
            provenance.write_origin(target, origin, os.path.getsize(temporary))
    return instances.counts[0], written, 1 - tokens / (written * packing.max_seq_length)


def main(_: list[str]) -> None:
    """Checks the files and packs each of them."""
    paths = find_files(FLAGS.input_file, "--input_file")
    targets = [os.path.join(FLAGS.output_dir, os.path.basename(path)) for path in paths]
    for path, target in zip(paths, targets):
        if absolute(path) == absolute(target) or targets.count(target) > 1:
            raise ValueError(f"--output_dir={FLAGS.output_dir}: {target} would overwrite another file")
        if records.holds_records(path):
            packing_for(path, FLAGS.max_instances_per_row)
    if not any(map(records.holds_records, paths)):
        raise ValueError(
            f"--input_file={FLAGS.input_file}: expected records, got {len(paths)} empty file{'s' * (len(paths) > 1)}"
        )
    if existing := [target for target in targets if exists(target)]:
        raise ValueError(f"--output_dir={FLAGS.output_dir}: {existing[0]} exists; give a new folder")
    make_folder(FLAGS.output_dir)
    lines = []
    with Reporter() as reporter:
        reporter.show("packing", 0)
        for number, (path, target) in enumerate(zip(paths, targets)):
            instances, rows, padding = pack_file(
                path, target, FLAGS.max_instances_per_row, reporter, number / len(paths), 1 / len(paths)
            )
            lines.append(f"{target}: {instances} instances in {rows} rows, {padding:.1%} padding")
        reporter.show("packing", 1)
    print("\n".join(lines))


if __name__ == "__main__":
    run_main(main)
