import json
import os
import pathlib
import socket
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from made_pretraining import write_records

from official_bert.training import distribution
from official_bert.training.distribution import Placement

SCRIPT = pathlib.Path(__file__).parent.parent / "run_for_parity.py"


def start(records, output, *arguments):
    return subprocess.Popen([sys.executable, str(SCRIPT), str(records), str(output), *map(str, arguments)],
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process):
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out[-3000:]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("parity")


@pytest.fixture(scope="module")
def records(folder):
    return write_records(folder / "train.tfrecord", 200)


@pytest.fixture(scope="module")
def one_device(folder, records):
    finish(start(records, folder / "one.npz", "one_device", 0, 1))
    return np.load(folder / "one.npz")


def check_same(found, wanted, replicas):
    assert int(found["replicas"]) == replicas
    assert len(wanted["losses"]) == 20 and wanted["losses"][0] - wanted["losses"][-1] > 0.001
    np.testing.assert_allclose(found["losses"], wanted["losses"], atol=1e-5)
    for name in wanted.files:
        if name.startswith("weight_"):
            np.testing.assert_allclose(found[name], wanted[name], atol=1e-5, err_msg=name)


@pytest.mark.parametrize(("devices", "accumulation"), [
    (2, 1), pytest.param(4, 1, marks=pytest.mark.slow), pytest.param(2, 2, marks=pytest.mark.slow)])
def test_replicas_and_accumulation_train_the_same(folder, records, one_device, devices, accumulation):
    output = folder / f"{devices}-{accumulation}.npz"
    finish(start(records, output, "mirrored", devices, accumulation))
    check_same(np.load(output), one_device, devices)


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def test_two_workers_train_the_same(folder, records, one_device):
    hosts = ",".join(f"127.0.0.1:{port}" for port in free_ports(2))
    workers = [start(records, folder / f"worker-{index}.npz", "multi_worker", 0, 1, hosts, index) for index in range(2)]
    for worker in workers:
        finish(worker)
    for index in range(2):
        check_same(np.load(folder / f"worker-{index}.npz"), one_device, 2)


@pytest.mark.slow
def test_two_workers_by_tf_config_train_the_same(folder, records, one_device, monkeypatch):
    hosts = [f"127.0.0.1:{port}" for port in free_ports(2)]
    workers = []
    for index in range(2):
        monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": {"worker": hosts}, "task": {"type": "worker", "index": index}}))
        workers.append(start(records, folder / f"tf-config-{index}.npz", "multi_worker", 0, 1))
    for worker in workers:
        finish(worker)
    check_same(np.load(folder / "tf-config-1.npz"), one_device, 2)


@pytest.mark.parametrize(("placement", "told"), [
    (Placement(strategy="tpu", tpu_name="nowhere"), "--strategy=tpu: no TPU could be reached with --tpu_name=nowhere"),
    (Placement(strategy="multi_worker", worker_hosts="a:1,b:1", task_index=2), "--task_index: expected 0 to 1"),
    (Placement(strategy="multi_worker"), "expected --worker_hosts and --task_index, or TF_CONFIG"),
    (Placement(strategy="mirrored"), "no GPU found; --num_cpu_devices=2"),
    (Placement(strategy="cluster"), "expected one of")])
def test_a_place_that_is_not_there_is_told(placement, told):
    if "GPU" in told and tf.config.list_physical_devices("GPU"):
        pytest.skip("this machine has a GPU")
    with pytest.raises(ValueError) as error:
        distribution.make_strategy(placement)
    assert told in str(error.value)


def test_a_tf_config_without_this_worker_is_told(monkeypatch):
    monkeypatch.setitem(os.environ, "TF_CONFIG", '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}')
    with pytest.raises(ValueError, match=r"expected task\.index from 0 to 0, got 1"):
        distribution.make_strategy(Placement(strategy="multi_worker"))


def test_a_batch_that_cannot_be_divided_is_told():
    told = "config.training.batch_size: expected a multiple of 1 replicas times 4 accumulation steps = 4, got 30"
    with pytest.raises(ValueError, match=told):
        distribution.check_batch("batch_size", 30, tf.distribute.get_strategy(), 4)
