"""Training on several machines: clusters, whose workers report why they end, and TPUs of other machines."""

from official_bert.command_line import error_in_one_line

import contextlib
import functools
import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from official_bert.data.batches.sources import BatchSource, RecordSource
from official_bert.data.pretraining.graph_reader import GraphReader
from official_bert.training.machines.cluster import Placement, workers_of
from official_bert.training.machines.meeting import Meeting, answers, join

WORKER_LOST = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.InternalError,
    tf.errors.DeadlineExceededError,
)
LONGEST_REASON = 1000  # characters
STUCK_SECONDS = 5.0  # in which a step fails by itself if one of its rows cannot be read
LOOKUP_SECONDS = 15.0  # for the cloud to say where a TPU is


class Workers(tf.distribute.MultiWorkerMirroredStrategy):
    """All devices of a cluster, whose workers report to each other why they end."""

    def __init__(self, resolver: tf.distribute.cluster_resolver.ClusterResolver, meeting: Meeting):
        super().__init__(cluster_resolver=resolver)
        self.meeting = meeting

    def leave(self, error: object) -> None:
        """Tells the other workers why this one ends, and aborts all running computations with them."""
        # no public call has this effect; TensorFlow's own failure handling uses this one
        from tensorflow.python.eager import context

        self.meeting.leave(text := error_in_one_line(error))
        with contextlib.suppress(tf.errors.OpError):  # the others have ended too
            context.context().report_error_to_cluster(tf.errors.UNAVAILABLE, text[:LONGEST_REASON])


def multi_worker(placement: Placement) -> tf.distribute.Strategy:
    """Returns a strategy over all workers' devices; the flags or TF_CONFIG describe the cluster."""
    hosts, index = workers_of(placement)
    if placement.worker_hosts:
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec({"worker": hosts}), task_type="worker", task_id=index, rpc_layer="grpc"
        )
    else:
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    return Workers(resolver, _begin_together(placement))


@functools.cache  # once in the life of a process
def _begin_together(placement: Placement) -> Meeting:
    """Waits until all workers are about to make their strategy: TensorFlow would wait an hour for one that has ended
    meanwhile.
    """
    meeting = join(placement)
    meeting.agree()
    return meeting


@functools.cache  # to initialise it a second time would take the values of all variables on it
def tpu(placement: Placement) -> tf.distribute.Strategy:
    where = f"--tpu_name={placement.tpu_name}"
    resolver, hosts = _find_tpu(placement, where)
    # for which the connection would wait for minutes
    if silent := next((host for host in hosts if not answers(host)), ""):
        raise ValueError(_unreachable(where, f"{silent} does not answer"))
    try:
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        strategy = tf.distribute.TPUStrategy(resolver)
    except (ValueError, RuntimeError, OSError, ImportError, tf.errors.OpError) as error:
        raise ValueError(_unreachable(where, error)) from None
    return strategy


def _find_tpu(placement: Placement, where: str) -> tuple[Any, list[str]]:
    """Returns TensorFlow's resolver of the TPU and the other machines that have it, none for the TPU of this one.

    Raises ValueError, after LOOKUP_SECONDS at the latest, if it cannot be found.
    """
    results: queue.SimpleQueue = queue.SimpleQueue()

    def find() -> None:
        try:
            resolver = tf.distribute.cluster_resolver.TPUClusterResolver(
                tpu=placement.tpu_name, zone=placement.tpu_zone or None, project=placement.gcp_project or None
            )
            results.put((resolver, [host for hosts in resolver.cluster_spec().as_dict().values() for host in hosts]))
        except (
            Exception
        ) as error:  # the libraries of the cloud have their own for missing credentials, unknown names, no network
            results.put(error)

    threading.Thread(target=find, daemon=True).start()  # it may wait for an answer of the cloud that never comes
    try:
        answer = results.get(timeout=LOOKUP_SECONDS)
    except queue.Empty:
        raise ValueError(_unreachable(where, f"nothing was found within {LOOKUP_SECONDS:.0f} s")) from None
    if isinstance(answer, Exception):
        raise ValueError(_unreachable(where, answer))
    return answer


def _unreachable(where: str, error: object) -> str:
    if "No OpKernel was registered" in str(error):
        error = "this TensorFlow was built without TPUs: BUILD.md says how to install tensorflow-tpu in its place"
    return (
        f"--strategy=tpu: no TPU could be reached with {where} (on a TPU VM: --tpu_name=local): "
        f"{' '.join(str(error).split())[:300] or type(error).__name__}"
    )


@contextlib.contextmanager
def reporting_lost_workers(strategy: tf.distribute.Strategy, when: Callable[[], str]) -> Iterator[None]:
    """Raises ValueError if another worker has ended with an error, and OSError with TensorFlow's cause if it is lost.

    The messages name the worker's error and include `when`, for example the step. The other workers learn of an error
    of this worker, and their computations end at once.
    """
    if not isinstance(strategy, Workers):
        yield
        return
    try:
        yield
    except WORKER_LOST as error:
        cause = " ".join(str(error.message).split())[:200]
        said = strategy.meeting.own_error or strategy.meeting.reason()
        strategy.meeting.own_error = said or cause
        if said:
            raise ValueError(said) from None
        raise OSError(
            f"{when()}: another worker no longer answers; start all of them again with the same command, and the run "
            f"continues from its newest checkpoint. That worker's own output says why it ended; here TensorFlow says: "
            f"{cause}"
        ) from None
    except Exception as error:
        if not strategy.meeting.own_error:
            strategy.leave(error)
        raise


@contextlib.contextmanager
def reporting_bad_rows(strategy: tf.distribute.Strategy, source: BatchSource) -> Iterator[None]:
    """Tells the other workers about a row that cannot be read while steps are computed.

    TensorFlow could otherwise wait for them forever.
    """
    if not isinstance(strategy, Workers) or not isinstance(source, RecordSource):
        yield
        return
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(STUCK_SECONDS):
            if source.bad_row:
                strategy.leave(source.bad_row)
                return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def on_hosts(source: BatchSource, hosts: Sequence[str], start: int, stop: int) -> Callable[[int, int], tf.data.Dataset]:
    """Returns a function that makes a host's part of batches `start` to `stop` - 1, as a graph that other machines can
    run.

    Raises ValueError for data that a host cannot read; the error names both.
    """
    if not isinstance(source, RecordSource):
        raise ValueError(
            "--strategy=tpu: the TPUs of other machines train on records of pre-training alone; a task's rows are made "
            "by this process, for the TPU of this machine (--tpu_name=local)"
        )
    if not source.cache_dir:
        raise ValueError(
            "--cache_dir: expected a folder that all hosts of the TPU read, such as gs://bucket/cache, for the order "
            "of the records, got none"
        )
    reader = GraphReader(source, os.path.join(source.cache_dir, "record_orders"))
    reader.write_orders(start, stop)
    for host in hosts:
        if unread := reader.find_unread(host):
            raise ValueError(
                f"{unread}: {host} cannot read it; records (--input_file) and --cache_dir must lie where all hosts of "
                "the TPU read them, such as gs://bucket"
            )
    return functools.partial(reader.dataset, start, stop)
