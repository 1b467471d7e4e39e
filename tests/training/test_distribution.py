import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import types

import numpy as np
import pytest
import tensorflow as tf
import yaml
from local_ports import free_ports
from made_finetuning import data_files
from made_finetuning import make_config as make_finetuning
from made_pretraining import make_config, write_records, write_unmasked_records, write_vocab

from official_bert.config import to_dict
from official_bert.data.batches.sources import ExampleSource, RecordSource
from official_bert.runs import evaluation
from official_bert.runs.checks import origins
from official_bert.tasks.loading import load_task, restore_for_inference
from official_bert.training.machines import distribution, many_machines
from official_bert.training.machines.cluster import Placement, is_first_worker

SCRIPT = pathlib.Path(__file__).parent.parent / "run_for_parity.py"
STEPS = 20
KINDS = sorted(path.name for path in (SCRIPT.parent / "golden/family").iterdir() if path.is_dir())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("parity")


@pytest.fixture(scope="module")
def records(folder):
    return write_records(folder / "train.tfrecord", 200)


def train_on(folder, records, *names):
    """Returns losses and weights of the same 20 steps by arrangement, REPLICAS-ACCUMULATION."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), records, str(folder), *names],
        check=False,
        capture_output=True,
        text=True,
        timeout=600 + 60 * len(names),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return {path.stem: np.load(path) for path in folder.glob("*.npz")}


@pytest.fixture(scope="module")
def arrangements(folder, records):
    return train_on(folder, records, "--plain", "1-1", "2-2")


def check_same(losses, weights, wanted, least=25, fall=0.001):
    assert len(wanted["losses"]) == STEPS and wanted["losses"][0] - wanted["losses"][-1] > fall
    np.testing.assert_allclose(losses, wanted["losses"], atol=1e-5)
    names = [name for name in wanted.files if name not in ("losses", "replicas")]
    assert len(names) > least
    for name in names:
        np.testing.assert_allclose(weights[name], wanted[name], atol=1e-5, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["next_token", "packed", "replaced_tokens", "boundary"])
def test_other_objectives_and_packed_rows_train_the_same_on_replicas_and_with_accumulation(tmp_path, kind):
    records = write_records(tmp_path / "train.tfrecord", 400, shortest=4)
    found = train_on(tmp_path, records, f"1-1-{kind}", f"2-2-{kind}")
    check_same(found[f"2-2-{kind}"]["losses"], found[f"2-2-{kind}"], found[f"1-1-{kind}"])


@pytest.fixture(scope="module")
def relatives(tmp_path_factory):
    folder = tmp_path_factory.mktemp("relatives")
    records = write_records(folder / "train.tfrecord", 200)
    return train_on(folder, records, *(f"{arrangement}-{kind}" for kind in KINDS for arrangement in ("1-1", "2-2")))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_relative_trains_the_same_on_replicas_and_with_accumulation(relatives, kind):
    least = 22 if kind in ("modernbert", "nomic_bert") else 30  # their layers have no biases
    check_same(relatives[f"2-2-{kind}"]["losses"], relatives[f"2-2-{kind}"], relatives[f"1-1-{kind}"], least)


def check_same_arrangements(folder, records, kind):
    found = train_on(folder, records, f"1-1-{kind}", f"2-2-{kind}")
    # The loss of masked diffusion, which weighs 1 / t, differs more from batch to batch than 20 steps change it.
    check_same(found[f"2-2-{kind}"]["losses"], found[f"2-2-{kind}"], found[f"1-1-{kind}"], 20, -np.inf)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_relative_learns_masked_diffusion_the_same_on_replicas_and_with_accumulation(tmp_path, kind):
    write_vocab(tmp_path / "vocab.txt")
    check_same_arrangements(
        tmp_path, write_unmasked_records(tmp_path / "train.tfrecord", 200), f"masked_diffusion-{kind}"
    )


@pytest.mark.slow
def test_answers_are_learned_the_same_on_replicas_and_with_accumulation(tmp_path):
    write_vocab(tmp_path / "vocab.txt")
    rows = [f"{first} {second}\t{second} {first}\n" for first in "abcdefghijklmn" for second in "abcdefghijklmn"]
    (tmp_path / "train.tsv").write_text("source\tanswer\n" + "".join(rows))
    check_same_arrangements(tmp_path, str(tmp_path / "train.tsv"), "text_to_text")


def test_replicas_and_accumulation_train_the_same(arrangements):
    found = arrangements["2-2"]
    assert int(found["replicas"]) == 2
    check_same(found["losses"], found, arrangements["1-1"])


@pytest.mark.slow
@pytest.mark.parametrize(("replicas", "accumulation"), [(2, 1), (4, 1), (1, 4)])
def test_replicas_or_accumulation_alone_train_the_same(arrangements, records, tmp_path, replicas, accumulation):
    found = train_on(tmp_path, records, f"{replicas}-{accumulation}")[f"{replicas}-{accumulation}"]
    assert int(found["replicas"]) == replicas
    check_same(found["losses"], found, arrangements["1-1"])


def test_replicas_drop_out_differently_which_keras_seeds_alone_would_not(arrangements):
    dropped = arrangements["dropout"]
    np.testing.assert_array_equal(dropped["keras_seeds"][0], dropped["keras_seeds"][1])
    assert np.abs(dropped["our_seeds"][0] - dropped["our_seeds"][1]).max() > 1e-3


class Workers:
    """Runs the real command in two processes on one output folder."""

    def __init__(self, folder, records, name, by_flags=True, **training):
        self.folder, self.output = folder, folder / name
        model = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}  # as in run_for_parity.py
        config = make_config(model=model, training={"log_every": 1, "save_every": 5, "steps_per_loop": 2} | training)
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(to_dict(config)))
        self.by_flags = by_flags
        self.command = [
            sys.executable,
            "-m",
            "official_bert.run_pretraining",
            f"--config={folder}/{name}.yaml",
            f"--input_file={records}",
            f"--output_dir={self.output}",
            "--strategy=multi_worker",
            "--join_seconds=300",
        ]

    def start(self, second=()):
        """Starts both; `second` are more flags of the second."""
        hosts = [f"127.0.0.1:{port}" for port in free_ports(2)]
        self.processes = []
        for index in range(2):
            flags = [f"--worker_hosts={','.join(hosts)}", f"--task_index={index}"] if self.by_flags else []
            cluster = json.dumps({"cluster": {"worker": hosts}, "task": {"type": "worker", "index": index}})
            environment = os.environ | ({} if self.by_flags else {"TF_CONFIG": cluster})
            flags += second if index else ()
            self.processes.append(
                subprocess.Popen(
                    [*self.command, *flags],
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )

    def wait(self):
        """Returns (statuses, outputs) after both have ended."""
        outputs = [process.communicate(timeout=900)[0] for process in self.processes]
        return [process.returncode for process in self.processes], outputs

    def wait_for_step(self, step):
        deadline = time.monotonic() + 600
        while max(self.losses(), default=0) < step:
            assert time.monotonic() < deadline and all(process.poll() is None for process in self.processes)
            time.sleep(0.1)

    def losses(self):
        """Returns the loss by step; a step done twice, before and after a stop, must have the same loss."""
        found = {}
        log = self.output / "log.jsonl"
        for line in log.read_text().splitlines() if log.exists() else []:
            row = json.loads(line)
            assert found.setdefault(row["step"], row["train/loss"]) == row["train/loss"], row
        return found


@pytest.mark.slow
@pytest.mark.parametrize("by_flags", [True, False])
def test_two_workers_train_the_same(folder, records, arrangements, by_flags):
    workers = Workers(folder, records, f"workers-{by_flags}", by_flags)
    workers.start()
    statuses, outputs = workers.wait()
    assert statuses == [0, 0], outputs
    assert "fresh: weights are random" in outputs[0] and "fresh" not in outputs[1]
    _, model = restore_for_inference(str(workers.output))
    weights = {variable.path.partition("/")[2]: variable.numpy() for variable in model.trainable_variables}
    check_same(list(workers.losses().values()), weights, arrangements["1-1"])


@pytest.mark.slow
def test_workers_stop_together_survive_a_loss_by_resuming_and_train_the_same(folder, records):
    whole = Workers(folder, records, "whole", steps=60)
    whole.start()
    assert whole.wait()[0] == [0, 0]
    workers = Workers(folder, records, "stopped", steps=60)
    workers.start()
    workers.wait_for_step(3)
    workers.processes[1].send_signal(signal.SIGTERM)  # one worker's machine is taken away
    statuses, outputs = workers.wait()
    assert statuses == [75, 75] and "SIGTERM: saved at step" in outputs[0]
    workers.start()
    workers.wait_for_step(25)
    workers.processes[1].kill()
    statuses, outputs = workers.wait()
    assert statuses == [1, -signal.SIGKILL]
    assert "resumed: " in outputs[0] and "another worker no longer answers; start all of them again" in outputs[0]
    assert "Traceback" not in outputs[0]
    workers.start()
    statuses, outputs = workers.wait()
    assert statuses == [0, 0] and "resumed: " in outputs[0]
    assert workers.losses() == whole.losses() and len(whole.losses()) == 60


@pytest.mark.slow
def test_the_time_of_workers_is_that_of_the_first_one(folder, records):
    hours = 0.03
    workers = Workers(folder, records, "hours", hours=hours, steps=0)
    workers.start()
    statuses, outputs = workers.wait()
    assert statuses == [0, 0], outputs
    rows = [json.loads(line) for line in (workers.output / "log.jsonl").read_text().splitlines()]
    shares = [(row["step"], row["share"]) for row in rows if "share" in row]
    assert shares == sorted(shares) and shares[-1][1] > 0.5 and rows[-1]["time_over"].startswith("after 0.03 hours")
    saved = [row["time"] for row in rows if "time_over" in row]
    assert saved[0] - rows[0]["time"] < hours * 3600


@pytest.mark.parametrize(
    ("placement", "told"),
    [
        (
            Placement(strategy="tpu", tpu_name="nowhere"),
            "--strategy=tpu: no TPU could be reached with --tpu_name=nowhere",
        ),
        (
            Placement(strategy="tpu", tpu_name="mine", tpu_zone="us-central1-a", gcp_project="p"),
            "with --tpu_name=mine (on a TPU VM",
        ),
        (
            Placement(strategy="tpu", tpu_name="grpc://192.0.2.1:8470"),
            "on a TPU VM: --tpu_name=local): 192.0.2.1:8470 does not answer",
        ),
        (Placement(strategy="multi_worker", worker_hosts="a:1,b:1", task_index=2), "--task_index: expected 0 to 1"),
        (Placement(strategy="multi_worker"), "expected --worker_hosts and --task_index, or TF_CONFIG"),
        (Placement(strategy="mirrored"), "no GPU found; --num_cpu_devices=2"),
        (Placement(strategy="cluster"), "expected one of"),
    ],
)
def test_a_place_that_is_not_there_is_told(placement, told):
    if "GPU" in told and tf.config.list_physical_devices("GPU"):
        pytest.skip("this machine has a GPU")
    with pytest.raises(ValueError) as error:
        distribution.make_strategy(placement)
    assert told in str(error.value)


def test_a_cloud_that_does_not_answer_is_told_in_time(monkeypatch):
    monkeypatch.setattr(many_machines, "LOOKUP_SECONDS", 0.2)
    monkeypatch.setattr(tf.distribute.cluster_resolver, "TPUClusterResolver", lambda **_: time.sleep(30))
    began = time.monotonic()
    with pytest.raises(
        ValueError, match="no TPU could be reached with --tpu_name=silent .*nothing was found within 0 s"
    ):
        distribution.make_strategy(Placement(strategy="tpu", tpu_name="silent"))
    assert time.monotonic() - began < 10


def test_a_tensorflow_without_tpus_is_told_in_plain_words(monkeypatch):
    """The operation of the plain wheel fails by itself; the cluster's connection is left out, because it would stay in
    this process.
    """
    monkeypatch.setattr(tf.config, "experimental_connect_to_cluster", lambda _: None)
    with pytest.raises(
        ValueError, match=r"--tpu_name=local \(on .*\): this TensorFlow was built without TPUs: BUILD.md says"
    ):
        distribution.make_strategy(Placement(strategy="tpu", tpu_name="local"))


def test_hosts_of_a_slice_are_told_from_this_machine():
    def hosts(job, *tasks):
        devices = [f"/job:{job}/replica:0/task:{task}/device:TPU:{core}" for task in tasks for core in range(4)]
        return distribution.other_hosts(types.SimpleNamespace(extended=types.SimpleNamespace(worker_devices=devices)))

    assert hosts("localhost", 0) == []
    assert hosts("worker", 1, 0) == [f"/job:worker/replica:0/task:{task}/device:CPU:0" for task in (0, 1)]


def test_other_machines_read_records_alone_and_where_they_lie(tmp_path):
    with pytest.raises(ValueError, match="the TPUs of other machines train on records of pre-training alone"):
        many_machines.on_hosts(
            ExampleSource([{"input_ids": np.arange(3)}], 1), ["/job:worker/task:1/device:CPU:0"], 0, 1
        )
    write_records(tmp_path / "records", 8)
    with pytest.raises(ValueError, match="--cache_dir: expected a folder that all hosts of the TPU read, .* got none"):
        many_machines.on_hosts(
            RecordSource([str(tmp_path / "records")], 2, lambda *_: {}), ["/job:worker/task:1/device:CPU:0"], 0, 1
        )


def test_a_host_of_a_tpu_that_does_not_answer_is_told_before_the_connection(monkeypatch):
    host = f"127.0.0.1:{free_ports(1)[0]}"
    found = types.SimpleNamespace(cluster_spec=lambda: tf.train.ClusterSpec({"worker": [host]}))
    monkeypatch.setattr(tf.distribute.cluster_resolver, "TPUClusterResolver", lambda **_: found)
    with pytest.raises(
        ValueError, match=f"no TPU could be reached with --tpu_name=silent pod .*: {host} does not answer"
    ):
        distribution.make_strategy(Placement(strategy="tpu", tpu_name="silent pod"))


def test_a_tpu_is_initialised_once_for_training_and_prediction(monkeypatch):
    initialised, local_tpu = [], types.SimpleNamespace(cluster_spec=lambda: tf.train.ClusterSpec({}))
    monkeypatch.setattr(tf.distribute.cluster_resolver, "TPUClusterResolver", lambda **_: local_tpu)
    monkeypatch.setattr(tf.config, "experimental_connect_to_cluster", lambda _: None)
    monkeypatch.setattr(tf.tpu.experimental, "initialize_tpu_system", initialised.append)
    monkeypatch.setattr(
        tf.distribute,
        "TPUStrategy",
        lambda _: types.SimpleNamespace(extended=types.SimpleNamespace(worker_devices=["/job:localhost/device:TPU:0"])),
    )
    placement = Placement(strategy="tpu", tpu_name="made for this test")
    assert distribution.make_strategy(placement) is distribution.make_strategy(placement)
    assert initialised == [local_tpu]


def test_a_tf_config_without_this_worker_is_told(monkeypatch):
    monkeypatch.setitem(
        os.environ, "TF_CONFIG", '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}'
    )
    with pytest.raises(ValueError, match=r"expected task\.index from 0 to 0, got 1"):
        distribution.make_strategy(Placement(strategy="multi_worker"))


@pytest.mark.parametrize(
    ("cluster", "kind", "index", "first"),
    [
        ({"worker": ["a:1", "b:1"]}, "worker", 0, True),
        ({"worker": ["a:1", "b:1"]}, "worker", 1, False),
        ({"chief": ["a:1"], "worker": ["b:1", "c:1"]}, "chief", 0, True),
        ({"chief": ["a:1"], "worker": ["b:1", "c:1"]}, "worker", 0, False),
        ({"chief": ["a:1"]}, "chief", 0, True),
    ],
)
def test_one_process_of_a_cluster_writes_its_chief_if_there_is_one(monkeypatch, cluster, kind, index, first):
    monkeypatch.setitem(
        os.environ, "TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})
    )
    assert is_first_worker(Placement(strategy="multi_worker")) == first
    monkeypatch.setattr(tf.distribute, "MultiWorkerMirroredStrategy", types.SimpleNamespace)
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    assert distribution.is_chief(types.SimpleNamespace(cluster_resolver=resolver)) == first


@pytest.mark.parametrize(
    "config",
    [
        '{"cluster": {"worker": ["a:1"]}, "task": {"type": "evaluator", "index": 0}}',
        '{"cluster": {"worker": ["a:1"]}, "task": {"index": "x"}}',
        '{"cluster": {"worker": ["a:1"]}, "task": 3}',
    ],
)
def test_a_tf_config_of_another_kind_is_told(monkeypatch, config):
    monkeypatch.setitem(os.environ, "TF_CONFIG", config)
    with pytest.raises(ValueError, match="expected --worker_hosts and --task_index, or TF_CONFIG"):
        is_first_worker(Placement(strategy="multi_worker"))
    monkeypatch.setitem(
        os.environ,
        "TF_CONFIG",
        '{"cluster": {"ps": ["a:1"], "worker": ["b:1"]}, "task": {"type": "worker", "index": 0}}',
    )
    with pytest.raises(ValueError, match="TF_CONFIG: expected a cluster of worker and chief alone, got ps"):
        is_first_worker(Placement(strategy="multi_worker"))


def test_a_batch_that_cannot_be_divided_is_told():
    told = "config.training.batch_size: expected a multiple of 1 replicas times 4 accumulation steps = 4, got 30"
    with pytest.raises(ValueError, match=told):
        distribution.check_batch("batch_size", 30, tf.distribute.get_strategy(), 4)


def test_a_tpu_gets_batches_of_few_lengths(monkeypatch):
    def lengths(strategy):
        rows = [{"input_ids": np.ones(length, np.int32)} for length in (20, 33, 64, 65, 100, 31)]
        source = ExampleSource(rows, 2, shuffle=False, sequence_keys=("input_ids",))
        return [batch["input_ids"].shape[1] for batch in distribution.distribute(source, strategy)]

    assert lengths(tf.distribute.get_strategy()) == [33, 65, 100]
    # No TPU is at hand: the default strategy stands for one.
    monkeypatch.setattr(tf.distribute, "TPUStrategy", type(tf.distribute.get_strategy()))
    monkeypatch.setattr(distribution, "other_hosts", lambda _: [])
    assert lengths(tf.distribute.get_strategy()) == [64, 100, 100]


class TwoReplicas(tf.distribute.OneDeviceStrategy):
    """Says that it has two replicas."""

    num_replicas_in_sync = 2


def test_workers_with_another_configuration_or_without_the_checkpoint_are_refused_and_with_another_path_are_not(
    monkeypatch,
):
    def numbers(config, init_checkpoint=""):
        found = []
        with monkeypatch.context() as patch:
            patch.setattr(distribution, "sum_over_replicas", lambda _, value: found.append(int(value)) or 2 * found[0])
            distribution.check_same(
                TwoReplicas("/cpu:0"), "configuration", origins.same_everywhere(config, init_checkpoint)
            )
        return found[0]

    mine = make_config()
    others = {
        "the same": mine,
        "a path": make_config(tokenizer={"vocab_file": "elsewhere/vocab.txt"}),
        "a rate": make_config(optimizer={"learning_rate": 2e-4}),
        "a seed": make_config(seed=2),
    }
    refused = {name for name, other in others.items() if numbers(other) != numbers(mine)}
    assert refused == {"a rate", "a seed"} and numbers(mine, "one") == numbers(mine, "another") != numbers(mine)
    monkeypatch.setattr(distribution, "sum_over_replicas", lambda _, value: int(value) + numbers(others["a rate"]))
    with pytest.raises(
        ValueError, match="--strategy=multi_worker: expected the same configuration on every worker, got another one"
    ):
        distribution.check_same(TwoReplicas("/cpu:0"), "configuration", origins.same_everywhere(mine, ""))


def test_an_evaluation_alone_checks_its_groups_on_each_replica(tmp_path):
    (tmp_path / "dev.tsv").write_text("text\ttext_pair\na king\ta war\n")
    task = load_task(make_finetuning("retrieval", options={"group_size": 4}, training={"eval_batch_size": 4}))
    trainer = types.SimpleNamespace(steps_done=0, strategy=TwoReplicas("/cpu:0"), model=task.build_model())
    with pytest.raises(
        ValueError, match=r"training\.eval_batch_size: expected whole groups .* got 2 rows there \(4 in the batch\)"
    ):
        evaluation._measure(trainer, task, data_files(eval_file=tmp_path / "dev.tsv"))
