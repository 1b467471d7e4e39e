"""Processor time by kind of operation, from TensorFlow's profiler; for the benchmarks beside this file."""

import collections
import pathlib
import re
import tempfile
from collections.abc import Callable

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

COMPILED = "compiled by XLA"  # of a training step the update of the weights, and what lies between the products


def operation_times(run: Callable[[], object]) -> collections.Counter:
    """Returns seconds by kind, of all threads together, while `run` runs.

    An operation is known by its TensorFlow kind, such as `MatMul`; what XLA compiled has one name for all. A product's
    helping threads are not in it: TensorFlow's profiler sees the thread that asks for it.
    """
    with tempfile.TemporaryDirectory() as folder:
        with tf.profiler.experimental.Profile(folder):
            run()
        (path,) = pathlib.Path(folder).rglob("*.xplane.pb")
        space = xplane_pb2.XSpace.FromString(path.read_bytes())
    seconds: collections.Counter = collections.Counter()
    for plane in space.planes:
        for line in plane.lines:
            within: list[tuple[int, str]] = []  # (end, kind) of the events around one; its time is taken from theirs
            for event in sorted(line.events, key=lambda event: (event.offset_ps, -event.duration_ps)):
                while within and within[-1][0] <= event.offset_ps:
                    within.pop()
                kind = kind_of(event, plane)
                if within:
                    seconds[within[-1][1]] -= event.duration_ps / 1e12
                seconds[kind] += event.duration_ps / 1e12
                within.append((event.offset_ps + event.duration_ps, kind))
    del seconds[""]
    return seconds


def kind_of(event, plane) -> str:
    """The kind of operation that an event of a profile is about; "" for one that is about none."""
    if any(plane.stat_metadata[stat.metadata_id].name == "hlo_op" for stat in event.stats):
        return COMPILED
    name, colon, kind = plane.event_metadata[event.metadata_id].name.rpartition(":")
    return kind if colon and "/" in name and re.fullmatch(r"\w+", kind) else ""  # "scope/of/the/operation:Kind"
