"""A story whose every file lies on another store: `ram://` and `memory://` in this process, `s3://` between processes.

The same story on this machine gives the records, the losses and the answers to compare with.
"""

import json
import os
import shlex
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
import toy_world
from commands import ROOT, run_here
from needed_tools import need

from official_bert.storage import files, stores

TINY = """\
task: pretraining
model: {vocab_size: 120, hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 32,
        max_position_embeddings: 32}
options: {max_seq_length: 32, max_predictions_per_seq: 4}
optimizer: {learning_rate: 0.001}
training: {batch_size: 16, log_every: 2, save_every: 2, eval_every: 4, keep_checkpoints: 2}
"""
PRETRAIN = (
    "-m official_bert.run_pretraining --config=$HERE/base.yaml --input_file=$HERE/records/train-*,$HERE/records/more@2 "
    "--eval_input_file=$HERE/records/train-00000-of-00002 --vocab_file=$HERE/vocab.txt --output_dir=$HERE/run "
    "--cache_dir=$HERE/cache --num_train_steps="
)
STORY = (
    "tools/prepare_corpus.py --input_file=$HERE/raw/*.jsonl --output_file=$HERE/corpus.txt --num_workers=1",
    "tools/build_vocab.py --input_file=$HERE/corpus.txt --output_file=$HERE/vocab.txt --vocab_size=120 --num_unused=5 "
    "--num_workers=1",
    "tools/create_pretraining_data.py --input_file=$HERE/corpus.txt --output_file=$HERE/records/train@2 "
    "--vocab_file=$HERE/vocab.txt --max_seq_length=32 --max_predictions_per_seq=4 --dupe_factor=2",
    "tools/create_pretraining_data.py --input_file=$HERE/corpus.txt --output_file=$HERE/records/more@2 "
    "--vocab_file=$HERE/vocab.txt "
    "--max_seq_length=32 --max_predictions_per_seq=4 --dupe_factor=1 --gzip_compress --report_file=$HERE/report.json",
    "tools/inspect_records.py --input_file=$HERE/records --vocab_file=$HERE/vocab.txt",
    PRETRAIN + "4",
    PRETRAIN + "8",
    PRETRAIN + "8 --mode=eval",
    "-m official_bert.run_export --checkpoint=$HERE/run --output=$HERE/models/tiny --warmup_batch_sizes=1",
    "-m official_bert.run_predict --task=fill_mask --model=$HERE/models/tiny --input_file=$HERE/lines.txt "
    "--output_file=$HERE/out.jsonl",
    "-m official_bert.run_predict --task=fill_mask --model=$HERE/run --input_file=$HERE/lines.txt "
    "--output_file=$HERE/answers.jsonl",
    "tools/convert_checkpoint.py --input=$HERE/run --to=hugging_face --output=$HERE/hf",
    "-m official_bert.extract_features --input_file=$HERE/lines.txt --output_file=$HERE/features.jsonl "
    "--init_checkpoint=$HERE/hf --layers=-1 --max_seq_length=32",
    "-m official_bert.run_finetuning --task=classification --train_file=$HERE/train.tsv --eval_file=$HERE/train.tsv "
    "--predict_file=$HERE/train.tsv --init_checkpoint=$HERE/run/best --output_dir=$HERE/tuned --cache_dir=$HERE/cache "
    "--max_seq_length=32 --num_train_epochs=1 --set=training.batch_size=16 --allow_same_data",
    "tools/plot_run.py $HERE/run --output_file=$HERE/loss.png",
)


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """A folder with the files that the story begins with."""
    folder = tmp_path_factory.mktemp("given")
    (folder / "raw").mkdir()
    toy_world.write_corpus(folder / "raw/a.jsonl", 60)
    (folder / "tiny.yaml").write_text(TINY)
    (folder / "base.yaml").write_text("base: tiny.yaml\nseed: 3\n")
    (folder / "lines.txt").write_text("The dog [MASK].\nAnna lives in [MASK].\n")
    rows = [
        f"The {animal} {sound}.\t{'wild' if animal in toy_world.WILD else 'tame'}"
        for animal, sound in toy_world.SOUNDS.items()
    ]
    (folder / "train.tsv").write_text("\n".join(["text\tlabel", *rows * 4]) + "\n")
    return folder


def tell(given, here, run):
    """Copies the given files to a place and runs the story there; returns what can be compared."""
    for path in files.files_below(str(given)):
        target = f"{here}/{os.path.relpath(path, given)}"
        files.make_folder(files.folder_of(target))
        stores.store_of(target).upload(path, target)
    for line in STORY:
        status, out, err = run(shlex.split(line.replace("$HERE", here)))
        assert status == 0, f"{line}\n{out}\n{err}"
        assert line != PRETRAIN + "8" or f"resumed: {here}/run/ckpt-4 at step 4 of 8" in out
    assert files.list_names(f"{here}/cache")[0].endswith(".npz") and files.size_of(f"{here}/loss.png") > 1000
    assert files.list_names(f"{here}/run/tensorboard") and files.exists(f"{here}/tuned/predictions.tsv")
    log = [json.loads(line) for line in files.read_lines(f"{here}/run/log.jsonl")]
    with files.open_bytes(f"{here}/records/more-00001-of-00002") as file:
        return {
            "records": file.read(),
            "run": [name for name in files.list_names(f"{here}/run") if name.startswith("ckpt")],
            "losses": [[row.get("train/loss"), row.get("eval/loss")] for row in log],
            "exported": files.read_text(f"{here}/out.jsonl"),
            "answers": files.read_text(f"{here}/answers.jsonl"),
            "features": files.read_text(f"{here}/features.jsonl"),
            "classes": files.read_text(f"{here}/tuned/predictions.tsv"),
        }


def in_this_process(arguments):
    done = run_here(*arguments)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def on_this_machine(given, tmp_path_factory):
    return tell(given, str(tmp_path_factory.mktemp("local")), in_this_process)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["memory", "ram"])
def test_every_file_of_every_command_may_lie_on_another_store(scheme, given, on_this_machine, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = tell(given, f"{scheme}://world", in_this_process)
    assert told == on_this_machine
    assert os.listdir(tmp_path) == [], "a local folder of the store's name"


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    """An S3 server in a process of its own, with a bucket; its address is in the environment."""
    need("s3fs")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    for name, value in {
        "FSSPEC_S3_ENDPOINT_URL": address,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(200):
            try:
                urllib.request.urlopen(address, timeout=5).close()
                break
            except OSError:
                time.sleep(0.2)
        import fsspec

        fsspec.config.set_conf_env(fsspec.config.conf)
        fsspec.filesystem("s3").mkdir("world")
        yield "s3://world/toy"
    finally:
        server.terminate()
        server.wait()
        fsspec.config.conf.pop("s3", None)


@pytest.mark.slow
def test_processes_share_a_bucket(bucket, given, on_this_machine, tmp_path):
    def run(arguments):
        if arguments[0].endswith(".py"):
            arguments = [str(ROOT / arguments[0]), *arguments[1:]]
        done = subprocess.run(
            [sys.executable, *arguments],
            check=False,
            capture_output=True,
            text=True,
            timeout=300,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        return done.returncode, done.stdout, done.stderr

    told = tell(given, bucket, run)
    assert told == on_this_machine
    assert os.listdir(tmp_path) == [], "a local folder of the store's name"
