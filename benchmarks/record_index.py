"""Measures how records are found and read: start-up, the first batch anywhere in an epoch, records a second, memory.

    python benchmarks/record_index.py --folder=/tmp/many_records

Makes 10 million small records in 64 shards (0.5 GB) unless the folder holds them. The first start makes the index of
each shard, the second finds it; each is a process of its own, and so is the rest. To compare with an earlier version,
run this file with PYTHONPATH=<its checkout> on the same folder.

Bounds: start-up with the index at most 5 s; the first batch at the end of an epoch at most 1.5 times that at its
    beginning.
"""

import glob
import multiprocessing
import os
import statistics
import time

import numpy as np
from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_string("folder", None, "A folder for the records.", required=True)
flags.DEFINE_integer("records", 10_000_000, "Records in all.")
flags.DEFINE_integer("shards", 64, "Files.")
flags.DEFINE_integer("batch_size", 256, "Rows of a batch.")
flags.DEFINE_integer("rounds", 5, "Measurements of each first batch; the median counts.")
flags.DEFINE_list("places", ["beginning", "middle", "end"], "Where in an epoch the first batch is measured.")
flags.DEFINE_float("seconds", 10.0, "Seconds of reading.")
TOKENS = 16  # of a record
ROWS = 10_000  # encoded at once
LONGEST_START, LONGEST_END = 5.0, 1.5


def write_records() -> None:
    """Writes the shards."""
    from official_bert.data.record_files.records import Feature, make_example_encoder

    encoder = make_example_encoder([Feature("input_ids", TOKENS)])
    out = np.empty(ROWS * encoder.most_bytes, np.uint8)
    rng = np.random.default_rng(0)
    for shard in range(FLAGS.shards):
        bytes_left = FLAGS.records * (shard + 1) // FLAGS.shards - FLAGS.records * shard // FLAGS.shards
        with open(os.path.join(FLAGS.folder, f"part-{shard:05d}.tfrecord"), "wb") as file:
            while bytes_left:
                rows = rng.integers(0, 128, (min(ROWS, bytes_left), encoder.width), np.int32)
                file.write(out[: encoder.encode(rows, out)].data)
                bytes_left -= len(rows)


def open_source(paths: list[str], batch_size: int):
    """Returns a source of batches whose rows are only measured."""
    import tensorflow as tf

    from official_bert.data.batches.sources import RecordSource

    return RecordSource(
        paths, batch_size, lambda serialized, indices: {"size": tf.strings.length(serialized), "index": indices}, seed=1
    )


def start(paths: list[str], batch_size: int) -> float:
    """Returns the seconds from the list of files to the first batch, TensorFlow already imported."""
    import tensorflow as tf  # noqa: F401

    began = time.monotonic()
    next(iter(open_source(paths, batch_size).dataset()))
    return time.monotonic() - began


def read(
    paths: list[str], batch_size: int, places: list[str], rounds: int, seconds: float
) -> tuple[dict[str, float], float, float]:
    """Returns the seconds of the first batch at places of an epoch, records a second, and MB of RssAnon."""
    source = open_source(paths, batch_size)
    last = source.batches_per_epoch - 1
    next(iter(source.dataset()))
    medians = {}
    for name, number in (("beginning", 0), ("middle", last // 2), ("end", last)):
        if name not in places:
            continue
        times = []
        for epoch in range(rounds):
            began = time.monotonic()
            next(iter(source.dataset(number + epoch * source.batches_per_epoch)))
            times.append(time.monotonic() - began)
        medians[name] = statistics.median(times)
    batches = iter(source.dataset())
    next(batches)
    count, began = 0, time.monotonic()
    while time.monotonic() - began < seconds:
        next(batches)
        count += 1
    rate = count * batch_size / (time.monotonic() - began)
    with open("/proc/self/status", encoding="utf-8") as file:
        memory = next(int(line.split()[1]) for line in file if line.startswith("RssAnon")) / 1e3
    return medians, rate, memory


def main(_) -> None:
    """Measures and prints."""
    os.makedirs(FLAGS.folder, exist_ok=True)
    if not glob.glob(os.path.join(FLAGS.folder, "part-*")):
        write_records()
    paths = sorted(glob.glob(os.path.join(FLAGS.folder, "part-*")))
    for index in glob.glob(os.path.join(FLAGS.folder, ".part-*")):
        os.unlink(index)
    for path in paths:  # into the page cache, so that no measurement waits for the disk
        with open(path, "rb") as file:
            while file.read(1 << 24):
                pass

    def alone(function, *arguments):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            return pool.apply(function, (paths, FLAGS.batch_size, *arguments))

    without, present = alone(start), alone(start)
    first, rate, memory = alone(read, FLAGS.places, FLAGS.rounds, FLAGS.seconds)
    print("| | |\n|---|---|")
    print(f"| start-up to the first batch, without an index | {without:.2f} s |")
    print(
        f"| start-up to the first batch, with the index | {present:.2f} s "
        f"({'met' if present <= LONGEST_START else 'MISSED'}) |"
    )
    for name, seconds in first.items():
        print(f"| first batch at the {name} of an epoch | {seconds * 1e3:,.0f} ms |")
    if "end" in first:
        ratio = first["end"] / first["beginning"]
        print(f"| end / beginning | {ratio:.2f} ({'met' if ratio <= LONGEST_END else 'MISSED'}) |")
    print(f"| records a second | {rate:,.0f} |\n| RssAnon of the process | {memory:,.0f} MB |")


if __name__ == "__main__":
    app.run(main)
