"""Apache Beam on clusters of this machine, whose parts are killed: the files of `--order=sharded`, or none."""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import CancelledError

import pytest
from local_ports import free_ports
from needed_tools import ROOT, need

need("apache_beam")
DASK = "--runner=apache_beam.runners.dask.dask_runner.DaskRunner"
SPARK = "--runner=beam_pyspark_runner.pyspark_runner.PySparkRunner"
UMASKS = (0o022, 0o077)  # of the workers: the mode of a file tells who wrote it
ENVIRONMENT = os.environ | {
    "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
    "PYSPARK_PYTHON": sys.executable,
}


@pytest.fixture(scope="module", autouse=True)
def beam():
    """Imported here, because each process collects all files, and one of them runs this one."""
    global beam_runner
    from official_bert.tools.generation import beam_runner


def write_text(folder, golden, files, size):
    """Writes files of about `size` bytes: sentences of 3 to 30 words, documents of 1 to 20 sentences."""
    words = [word for word in (golden / "vocab_uncased.txt").read_text("utf-8").split() if word.isalpha()]
    folder.mkdir()
    for number in range(files):
        draw = random.Random(number)
        with open(folder / f"text-{number:02}", "w", encoding="utf-8") as file:
            while file.tell() < size:
                file.writelines(
                    " ".join(draw.choices(words, k=draw.randint(3, 30))) + "\n" for _ in range(draw.randint(1, 20))
                )
                file.write("\n")


def start(tmp_path, golden, name, *more):
    """Starts the command, which writes 8 files and a report into tmp_path/name."""
    return subprocess.Popen(
        [
            sys.executable,
            str(ROOT / "tools" / "create_pretraining_data.py"),
            f"--input_file={tmp_path}/text",
            f"--output_file={tmp_path}/{name}/train@8",
            f"--report_file={tmp_path}/{name}/report.json",
            f"--vocab_file={golden}/vocab_uncased.txt",
            *more,
        ],
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
        text=True,
    )


def on_dask(address):
    return "--engine=beam", f"--beam_options={DASK} --dask_client_address={address} --dask_npartitions=8"


@contextlib.contextmanager
def dask_cluster(folder):
    """Runs a scheduler and two workers; gives its address and their processes, the scheduler's first."""
    from distributed import Client

    address = f"tcp://127.0.0.1:{free_ports(1)[0]}"
    commands = [
        ["scheduler", "--host", address],
        *[["worker", address, "--no-nanny", "--nthreads", "1", "--local-directory", str(folder)] for _ in UMASKS],
    ]
    with contextlib.ExitStack() as stack:
        processes = []
        for command, umask in zip(commands, (-1, *UMASKS)):
            processes.append(
                stack.enter_context(
                    subprocess.Popen(
                        [sys.executable, "-m", "dask", *command, "--no-dashboard"],
                        env=ENVIRONMENT,
                        umask=umask,
                        stderr=subprocess.DEVNULL,
                    )
                )
            )
            stack.callback(processes[-1].kill)
        with Client(address, timeout=120) as client:
            client.wait_for_workers(len(UMASKS), timeout=120)
        yield address, processes


def wait_for_files(folder, command, umask, count):
    """Waits until the worker of this umask has begun so many files."""
    while sum(path.stat().st_mode & 0o777 == 0o666 & ~umask for path in folder.glob(".beam-*/*")) < count:
        assert command.poll() is None, command.stderr.read()
        time.sleep(0.05)


def assert_same(tmp_path, name):
    """Requires the files, the settings beside them and the counts of the sharded order."""
    names = sorted(path.name for path in (tmp_path / "local").iterdir())
    assert len(names) == 17 and sorted(path.name for path in (tmp_path / name).iterdir()) == names
    reports = [json.loads((tmp_path / folder / "report.json").read_text("utf-8")) for folder in ("local", name)]
    assert all(report.pop("files") for report in reports) and reports[0] == reports[1]
    assert reports[0]["yield"]["units"]["tokens"]["dropped"] > 0
    for file in set(names) - {"report.json"}:
        assert (tmp_path / name / file).read_bytes() == (tmp_path / "local" / file).read_bytes(), file


@pytest.mark.slow
def test_dask_writes_100_mb_of_text_as_one_machine_does_though_a_worker_is_killed(tmp_path, golden):
    need("distributed")
    write_text(tmp_path / "text", golden, 40, 2_500_000)
    local = start(tmp_path, golden, "local", "--order=sharded", "--dupe_factor=1")
    assert local.wait() == 0, local.stderr.read()
    with dask_cluster(tmp_path) as (address, (_, worker, _)):
        command = start(tmp_path, golden, "dask", "--dupe_factor=1", *on_dask(address))
        wait_for_files(tmp_path / "dask", command, UMASKS[0], 2)  # the first one is complete
        worker.kill()
        assert command.wait(500) == 0, command.stderr.read()
        assert worker.wait() == -signal.SIGKILL
    assert_same(tmp_path, "dask")


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["scheduler", "command"])
def test_a_run_that_is_stopped_leaves_no_file_with_a_name(tmp_path, golden, killed):
    need("distributed")
    write_text(tmp_path / "text", golden, 8, 250_000)
    with dask_cluster(tmp_path) as (address, (scheduler, _, _)):
        command = start(tmp_path, golden, "dask", "--dupe_factor=40", *on_dask(address))
        wait_for_files(tmp_path / "dask", command, UMASKS[0], 2)
        scheduler.kill() if killed == "scheduler" else command.send_signal(signal.SIGINT)
        _, errors = command.communicate(timeout=200)
    assert command.returncode == 1 and errors.count("error: ") == 1, errors
    # Dask logs what it lost
    assert killed == "scheduler" or "Traceback" not in errors, errors
    assert ("stopped by SIGINT; no output was written" if killed == "command" else "the pipeline ended") in errors
    assert not [path for path in (tmp_path / "dask").iterdir() if not path.name.startswith(".beam-")]


@pytest.mark.slow
def test_spark_writes_the_files_of_the_sharded_order(tmp_path, golden):
    need("beam_pyspark_runner")
    need("java")
    write_text(tmp_path / "text", golden, 3, 50_000)
    commands = [
        start(tmp_path, golden, "local", "--order=sharded"),
        start(tmp_path, golden, "spark", "--engine=beam", f"--beam_options={SPARK}"),
    ]
    for command in commands:
        _, errors = command.communicate(timeout=500)
        assert command.returncode == 0, errors
    assert_same(tmp_path, "spark")


@pytest.mark.parametrize(
    "option",
    [
        "--dask_client_address=tcp://127.0.0.1:{}",
        "--job_endpoint=localhost:{}",
        "--flink_master=http://127.0.0.1:{}/",
        "--spark_master_url=spark://localhost:{}",
    ],
)
def test_an_address_where_nothing_listens_is_refused(option):
    with socket.create_server(("127.0.0.1", 0)) as server:
        given = option.format(server.getsockname()[1])
        beam_runner.check_addresses(["--runner=X", given])
    with pytest.raises(ValueError, match=f"{given.split('=')[0]}: nothing listens at .*Connection refused"):
        beam_runner.check_addresses(["--runner=X", given])


def test_a_file_that_names_the_scheduler_is_read(tmp_path):
    with pytest.raises(ValueError, match="nowhere.json"):
        beam_runner.check_addresses([f"--dask_scheduler_file={tmp_path}/nowhere.json"])
    (tmp_path / "file.json").write_text(json.dumps({"address": f"tcp://127.0.0.1:{free_ports(1)[0]}"}))
    with pytest.raises(ValueError, match="--dask_scheduler_file: nothing listens at tcp"):
        beam_runner.check_addresses([f"--dask_scheduler_file={tmp_path}/file.json"])


def test_masters_without_an_address_are_accepted():
    beam_runner.check_addresses(["--flink_master=[auto]", "--spark_master_url=local[4]", "--job_endpoint=embed"])


class Pipeline:
    """A pipeline, and its result, that ends with an error."""

    def __init__(self, error):
        self.error, self.cancelled = error, False

    def run(self):
        return self

    def wait_until_finish(self):
        raise self.error

    def cancel(self):
        self.cancelled = True


@pytest.mark.parametrize("kind", [RuntimeError, CancelledError])
@pytest.mark.parametrize(
    "text, line",
    [
        (
            "Worker failed:\nTraceback (most recent call last):\n  File x\nValueError: text: expected UTF-8\n\n",
            "ValueError: text: expected UTF-8",
        ),
        ("job 3 failed", "job 3 failed"),
        ("", r"\w+Error"),
    ],
)
def test_the_failure_of_a_runner_is_one_line(kind, text, line):
    with pytest.raises(ValueError, match=f"--beam_options: the runner failed: {line}") as caught:
        beam_runner.run(Pipeline(kind(text)))
    assert "\n" not in str(caught.value)


def test_a_stopped_command_cancels_its_pipeline():
    pipeline = Pipeline(SystemExit("stopped"))
    with pytest.raises(SystemExit):
        beam_runner.run(pipeline)
    assert pipeline.cancelled
