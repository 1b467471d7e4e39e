import contextlib
import inspect
import json
import os
import pathlib
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

import pytest
import yaml
from commands import run_here
from local_ports import free_ports
from made_pretraining import make_config, write_records
from tensorflow.python.eager import context

from official_bert.config import to_dict
from official_bert.data.record_files import indexed_records
from official_bert.training.machines import cluster, meeting
from official_bert.training.machines.cluster import Placement
from official_bert.training.machines.meeting import Meeting

REPOSITORY = pathlib.Path(__file__).parents[2]


@pytest.fixture
def hosts():
    return [f"127.0.0.1:{port}" for port in free_ports(3)]


def in_threads(hosts, attend, indices=None):
    """Runs `attend(meeting)` of each worker; returns what each has raised, "" for nothing."""
    raised = {}

    def work(index):
        raised[index] = ""
        try:
            attend(Meeting(hosts, index, 10.0))
        except (ValueError, OSError) as error:
            raised[index] = str(error)

    threads = [
        threading.Thread(target=work, args=(index,)) for index in (range(len(hosts)) if indices is None else indices)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    return [raised[index] for index in sorted(raised)]


def test_workers_meet_and_agree_as_often_as_they_want_and_their_ports_are_free_afterwards(hosts):
    free = []

    def attend(meeting):
        meeting.agree()
        free.append(meeting.index)
        meeting.agree()
        with socket.create_server(("", int(meeting.hosts[meeting.index].rpartition(":")[2]))):
            meeting.agree()
        meeting.end()

    assert in_threads(hosts, attend) == ["", "", ""] and sorted(free) == [0, 1, 2]


@pytest.mark.parametrize("leaving", [0, 1, 2])
def test_what_one_worker_says_when_it_leaves_reaches_all_others_by_its_name(hosts, leaving):
    def attend(meeting):
        if meeting.index == leaving:
            meeting.leave("nowhere.tfrecord: no such file")
            raise ValueError("my own error")
        time.sleep(0.2 * meeting.index)
        meeting.agree()
        raise AssertionError("an agreement without one of the workers")

    errors = in_threads(hosts, attend)
    assert errors.pop(leaving) == "my own error"
    assert errors == [f"--strategy=multi_worker: {hosts[leaving]}: nowhere.tfrecord: no such file"] * 2


@pytest.mark.parametrize("ending", [0, 2])
def test_a_worker_that_ends_without_a_word_is_named(hosts, ending):
    def attend(meeting):
        if meeting.index == ending:
            meeting.end()
            return
        meeting.agree()

    errors = in_threads(hosts, attend)
    assert errors.pop(ending) == ""
    assert (
        errors == [f"--strategy=multi_worker: {hosts[ending]} ended before the training began; see its own output"] * 2
    )


@pytest.mark.parametrize("leaving", [0, 2])
@pytest.mark.parametrize("error", ["the disk is full", ""])
def test_the_others_learn_during_the_training_why_a_worker_has_left_or_that_it_is_lost(hosts, leaving, error):
    said = {}

    def attend(meeting):
        if meeting.index == leaving:
            if error:
                meeting.leave(error)
            meeting.end()  # as the end of its process does
        else:
            said[meeting.index] = meeting.reason()

    assert in_threads(hosts, attend) == ["", "", ""]
    assert list(said.values()) == [error and f"--strategy=multi_worker: {hosts[leaving]}: {error}"] * 2


@pytest.mark.parametrize("missing", [0, 1])
def test_a_host_that_is_missing_is_named_in_time_to_all_that_came(hosts, missing, monkeypatch, caplog):
    monkeypatch.setattr(meeting, "WARNS_AFTER", 0.1)
    errors, began = [], time.monotonic()

    def work(index):
        with pytest.raises(ValueError) as error:
            cluster.meet(
                Placement(strategy="multi_worker", worker_hosts=",".join(hosts), task_index=index, join_seconds=0.5)
            )
        errors.append(str(error.value))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(3) if index != missing]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert (
        errors
        == [
            "--strategy=multi_worker: expected every worker to be started within 0.5 s (--join_seconds), "
            f"{hosts[missing]} does not answer"
        ]
        * 2
        and time.monotonic() - began < 10
    )
    assert any(
        message.startswith("--strategy=multi_worker: waiting for the other workers: ") and hosts[missing] in message
        for message in caplog.messages
    )


def test_a_worker_that_starts_later_is_waited_for(hosts):
    errors = []

    def late():
        time.sleep(1.0)
        errors.extend(in_threads(hosts, Meeting.agree, [1]))

    thread = threading.Thread(target=late)
    thread.start()
    errors += in_threads(hosts, Meeting.agree, [0, 2])
    thread.join(20)
    assert errors == ["", "", ""]


def test_a_worker_of_another_cluster_and_strangers_are_no_workers(hosts):
    other = hosts[:1] + free_hosts(2)

    def strange():
        for _ in range(50):
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", int(hosts[0].rpartition(":")[2])), 1.0) as caller,
            ):
                caller.sendall(b"GET / HTTP/1.1\r\n\r\n")
                assert caller.recv(100) == b""
                return
            time.sleep(0.1)

    def wrong():
        wrong_errors.extend(in_threads(other, Meeting.agree, [1]))

    wrong_errors: list[str] = []
    threads = [threading.Thread(target=function) for function in (strange, wrong)]
    for thread in threads:
        thread.start()
    time.sleep(1.0)
    first = threading.Thread(target=lambda: in_threads(hosts, Meeting.agree, [0]))
    first.start()
    for thread in threads:
        thread.join(20)
    assert in_threads(hosts, Meeting.agree, [1, 2]) == ["", ""]
    first.join(20)
    assert wrong_errors == [
        f"--strategy=multi_worker: expected the same hosts on every worker, {hosts[0]} has {','.join(hosts)}"
    ]


def free_hosts(count):
    return [f"127.0.0.1:{port}" for port in free_ports(count)]


def test_a_port_that_is_taken_and_a_host_without_a_port_are_told(hosts):
    with (
        socket.create_server(("", int(hosts[0].rpartition(":")[2]))),
        pytest.raises(ValueError, match=f"{hosts[0]}: this worker's port cannot be opened"),
    ):
        Meeting(hosts, 0, 0.5)
    with pytest.raises(ValueError, match="--worker_hosts: expected host:port,host:port,..., got 'elsewhere'"):
        cluster.meet(Placement(strategy="multi_worker", worker_hosts=f"{hosts[0]},elsewhere", task_index=1))


def test_what_a_cluster_of_one_and_a_run_without_a_cluster_check_raises(hosts):
    def check():
        raise ValueError("broken")

    cluster.meet(Placement(), check)  # the run itself says so
    with pytest.raises(ValueError, match="^broken$"):
        cluster.meet(Placement(strategy="multi_worker", worker_hosts=hosts[0]), check)


def test_records_that_a_run_could_not_read_are_told_before_it_begins(tmp_path):
    good, bad = str(write_records(tmp_path / "good", 8)), tmp_path / "bad"
    indexed_records.check_readable([good])
    for place, told in ((20, "record 0 is corrupted: its bytes"), (-120, r"record \d is truncated or corrupted")):
        data = bytearray(pathlib.Path(good).read_bytes())
        begins = [0]
        while begins[-1] < len(data):
            begins.append(begins[-1] + struct.unpack_from("<Q", data, begins[-1])[0] + 16)
        data[place if place > 0 else begins[-2] + 1] ^= 255
        bad.write_bytes(data)
        with pytest.raises(ValueError, match=f"{bad}: {told}"):
            indexed_records.check_readable([good, str(bad)])
    with pytest.raises(OSError, match="gone"):
        indexed_records.check_readable([str(tmp_path / "gone")])


@pytest.mark.skipif(os.getuid() != 0, reason="runs as another user, which root alone may")
def test_a_file_that_may_not_be_read_is_named_in_one_line():
    with tempfile.TemporaryDirectory() as folder:  # tmp_path lies where another user may not look
        os.chmod(folder, 0o755)
        path = write_records(pathlib.Path(folder, "train.tfrecord"), 8)
        os.chmod(path, 0)
        code = (
            "import os, sys\nfrom official_bert import command_line\nfrom official_bert.data.record_files import "
            "indexed_records\nos.setuid(65534)\n"
            "try: indexed_records.check_readable(sys.argv[1:])\n"
            "except OSError as error: print(command_line.error_in_one_line(error))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, path], cwd=REPOSITORY, text=True, capture_output=True, check=False
        )
    assert done.stdout == f"{path}: Permission denied\n", done.stderr


def test_a_wrong_key_or_flag_is_told_before_other_workers_are_awaited(hosts):
    for wrong, told in (
        ("--set=training.stepz=3", "config.training: unknown keys ['stepz']; did you mean training.steps?"),
        (
            "--idle_seconds=3",
            "--idle_seconds: expected --mode=eval_continuous with it, got 3.0 without; it would do nothing",
        ),
    ):
        done = run_here(
            "-m",
            "official_bert.run_pretraining",
            "--input_file=none",
            "--output_dir=none",
            "--strategy=multi_worker",
            f"--worker_hosts={','.join(hosts)}",
            wrong,
        )
        assert (done.returncode, done.stderr) == (1, f"error: {told}\n")


def test_tensorflow_still_has_its_call_that_ends_the_computations_of_all_workers():
    """It is private: if this fails, look for another in tf.distribute's failure handling (`Workers.leave`; slow tests
    show the effect).
    """
    assert list(inspect.signature(context.Context.report_error_to_cluster).parameters) == [
        "self",
        "error_code",
        "error_message",
    ]


def run_two(folder, *flags_of_each):
    """Runs pre-training on two workers; returns what each has printed, its status, and the seconds until both had
    ended.
    """
    hosts, began = ",".join(free_hosts(2)), time.monotonic()
    processes = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "official_bert.run_pretraining",
                f"--config={folder}/config.yaml",
                f"--output_dir={folder}/run",
                "--strategy=multi_worker",
                f"--worker_hosts={hosts}",
                f"--task_index={index}",
                *flags,
            ],
            cwd=REPOSITORY,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for index, flags in enumerate(flags_of_each)
        if flags is not None
    ]
    outputs = [process.communicate(timeout=300)[0] for process in processes]
    return outputs, [process.returncode for process in processes], time.monotonic() - began, hosts.split(",")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(to_dict(make_config(training={"steps": 20}))))
    write_records(tmp_path / "train.tfrecord", 200)
    return tmp_path


@pytest.mark.slow
def test_a_command_whose_other_host_is_missing_names_it_within_30_seconds(folder):
    outputs, statuses, seconds, hosts = run_two(folder, [f"--input_file={folder}/train.tfrecord"], None)
    assert outputs == [
        "error: --strategy=multi_worker: expected every worker to be started within 15 s (--join_seconds), "
        f"{hosts[1]} does not answer\n"
    ]
    assert statuses == [1] and seconds < 30, seconds


@pytest.mark.slow
@pytest.mark.parametrize("broken", [0, 1])
@pytest.mark.parametrize(
    ("kind", "told", "most"),
    [
        ("missing", "no input file matches '{path}'", 30),
        ("truncated", "{path}: record 199 is truncated or corrupted", 30),
        ("in_the_middle", "{path}: record 100 is corrupted: its bytes do not match their checksum", 300),
    ],
)
def test_records_that_one_worker_cannot_read_are_named_by_both(folder, kind, broken, told, most):
    paths = [folder / str(index) / "train.tfrecord" for index in range(2)]
    for path in paths:
        path.parent.mkdir()
        shutil.copy2(folder / "train.tfrecord", path)
    spoil(path := paths[broken], kind)
    outputs, statuses, seconds, hosts = run_two(folder, *([f"--input_file={one}", "--cache_dir="] for one in paths))
    told = told.format(path=path)
    # A record in the middle of a file is read when its turn comes, after TensorFlow was imported and the model built.
    assert statuses == [1, 1] and seconds < most, (outputs, seconds)
    assert [line for line in outputs[broken].splitlines() if line.startswith("error")] == [f"error: {told}"]
    assert [line for line in outputs[1 - broken].splitlines() if line.startswith("error")] == [
        f"error: --strategy=multi_worker: {hosts[broken]}: {told}"
    ]
    assert not any("Traceback" in output for output in outputs)


def spoil(path, kind):
    if kind == "missing":
        path.unlink()
        return
    state, data, begin = path.stat(), bytearray(path.read_bytes()), 0
    if kind == "truncated":
        path.write_bytes(data[:-5])
        return
    for _ in range(100):
        begin += struct.unpack_from("<Q", data, begin)[0] + 16
    data[begin + 30] ^= 255
    path.write_bytes(data)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))  # as a disk that has lost a bit


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        ({"cluster": {"worker": ["a:1", "b:1"]}, "task": {"index": 1}}, (["a:1", "b:1"], 1)),
        (
            {"cluster": {"worker": ["b:1", "c:1"], "chief": ["a:1"]}, "task": {"type": "worker", "index": 1}},
            (["a:1", "b:1", "c:1"], 2),
        ),
        (
            {"cluster": {"worker": ["b:1"], "chief": ["a:1"]}, "task": {"type": "chief", "index": 0}},
            (["a:1", "b:1"], 0),
        ),
    ],
)
def test_the_workers_of_a_tf_config_have_one_order_the_chief_first(monkeypatch, config, wanted):
    monkeypatch.setitem(os.environ, "TF_CONFIG", json.dumps(config))
    assert cluster.workers_of(Placement(strategy="multi_worker")) == wanted
