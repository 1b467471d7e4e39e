"""Stories that begin with a checkpoint that somebody published."""

import csv
import json
import shutil

import numpy as np
import pytest
import toy_world
from commands import SERVE, ask
from safetensors.numpy import load_file, save_file


@pytest.fixture
def google(person, golden):
    """Returns a person whose folder `bert` holds a checkpoint in Google's published layout."""
    shutil.copytree(golden / "tf1_bert", person.folder / "bert")
    shutil.copy(golden / "vocab_uncased.txt", person.folder / "bert/vocab.txt")
    return person


@pytest.mark.slow
def test_from_a_tf1_checkpoint_over_domain_text_to_a_served_classifier(google):
    toy_world.write_corpus(google.folder / "raw.jsonl")
    model = "--bert_config_file=bert/bert_config.json --vocab_file=bert/vocab.txt"
    google.types("python tools/prepare_corpus.py --input_file=raw.jsonl --output_file=corpus.txt --num_workers=1")
    google.types(
        "python tools/create_pretraining_data.py --input_file=corpus.txt --output_file=domain.tfrecord "
        "--vocab_file=bert/vocab.txt --max_seq_length=48 --max_predictions_per_seq=6 --dupe_factor=2"
    )
    done = google.types(
        f"python -m official_bert.run_pretraining {model} --init_checkpoint=bert/bert_model.ckpt --do_train --do_eval "
        "--input_file=domain.tfrecord --output_dir=runs/domain --max_seq_length=48 --max_predictions_per_seq=6 "
        "--train_batch_size=16 --eval_batch_size=64 --num_train_steps=40 --num_warmup_steps=5 --learning_rate=2e-3 "
        "--set=training.log_every=10",
        messages=("1 of 1 files of evaluation records are training .*",),
    )
    assert "initialized (weights only): " in done.out
    logged = [
        json.loads(line) for line in (google.folder / "runs/domain/log.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    results = dict(
        line.split(" = ")
        for line in (google.folder / "runs/domain/eval_results.txt").read_text(encoding="utf-8").splitlines()
    )
    first_loss = next(row["train/mlm_loss"] for row in logged if "train/mlm_loss" in row)
    assert float(results["mlm_loss"]) < 0.6 * first_loss

    (google.folder / "glue").mkdir()
    for name, count, seed in (("train", 240, 1), ("dev", 30, 2)):
        rows = [(text, int(wild)) for text, wild in toy_world.heard(count, seed)]
        write_tsv(google.folder / f"glue/{name}.tsv", [("sentence", "label"), *rows])
    new = toy_world.heard(20, 3)
    write_tsv(
        google.folder / "glue/test.tsv",
        [("index", "sentence"), *((index, text) for index, (text, _) in enumerate(new))],
    )
    # With some seeds so small a model stays with the larger class, in batches of any order.
    google.types(
        f"python -m official_bert.run_classifier --task_name=SST-2 {model} --init_checkpoint=runs/domain "
        "--data_dir=glue --do_train --do_eval --do_predict --max_seq_length=48 --train_batch_size=16 "
        "--learning_rate=6e-4 --num_train_epochs=12 --output_dir=runs/sounds --set=seed=3"
    )
    assert "eval_accuracy = 1.0" in (google.folder / "runs/sounds/eval_results.txt").read_text(encoding="utf-8")
    by_training = np.loadtxt(google.folder / "runs/sounds/test_results.tsv", delimiter="\t")
    assert by_training.argmax(-1).tolist() == [wild for _, wild in new]
    google.types(
        "python -m official_bert.run_export --checkpoint=runs/sounds --output=models/sounds --warmup_batch_sizes="
    )
    by_rest, by_grpc = [], []
    google.types(
        f"{SERVE} --model_base_path=models/sounds/text --model_name=sounds",
        **ask("sounds", [text for text, _ in new], by_rest, by_grpc),
    )
    for answers in (by_rest, by_grpc):
        assert [answer["label"] for answer in answers] == [str(int(wild)) for _, wild in new]
        np.testing.assert_allclose([answer["probabilities"] for answer in answers], by_training, atol=1e-5)


def write_tsv(path, rows):
    """Writes columns with tabs between them, as in GLUE: quotation marks have no meaning."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter="\t", lineterminator="\n", quoting=csv.QUOTE_NONE, quotechar=None).writerows(rows)


@pytest.mark.slow
def test_from_a_published_encoder_to_served_embeddings(google):
    google.types("python tools/convert_checkpoint.py --to=hugging_face --input=bert --output=encoder")
    folder = google.folder / "encoder"  # made what sentence-transformers publishes: a BertModel without heads
    tensors = load_file(folder / "model.safetensors")
    save_file(
        {name.removeprefix("bert."): value for name, value in tensors.items() if name.startswith("bert.")},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    config = json.loads((folder / "config.json").read_text(encoding="utf-8")) | {"architectures": ["BertModel"]}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    texts = [text for text, _ in toy_world.heard(6, 1)]
    (google.folder / "lines.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    google.types(
        "python -m official_bert.extract_features --input_file=lines.txt --output_file=features.jsonl "
        "--init_checkpoint=bert --layers=-1 --max_seq_length=64"
    )
    rows = [
        json.loads(line)["features"]
        for line in (google.folder / "features.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    means = [np.mean([token["layers"][0]["values"] for token in row], 0) for row in rows]
    google.types(
        "python -m official_bert.run_export --checkpoint=encoder --head=embeddings --pooling=mean "
        "--output=models/encoder --warmup_batch_sizes="
    )
    by_server = []
    google.types(
        f"{SERVE} --model_base_path=models/encoder/text --model_name=encoder", **ask("encoder", texts, by_server)
    )
    np.testing.assert_allclose([answer["embedding"] for answer in by_server], means, atol=2e-5)
