"""`run_pretraining --mode=eval --init_checkpoint` measures a checkpoint of any format; so does fine-tuning without
training.
"""

import dataclasses
import math
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from commands import printed_metrics, run_here
from made_checkpoints import stored_small
from made_finetuning import VOCAB, make_config
from made_pretraining import write_records

from official_bert.config import save_config
from official_bert.models import checkpoints
from official_bert.models.interchange import formats
from official_bert.models.interchange.projects import tf1
from official_bert.tasks import answering
from official_bert.tasks.loading import load_task

FORMATS = ("tf1", "hugging_face", "keras_hub", "ours")


def evaluate(folder, *more):
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "official_bert.run_pretraining",
            "--mode=eval",
            "--max_seq_length=16",
            "--max_predictions_per_seq=3",
            "--eval_batch_size=8",
            *more,
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        cwd=folder,
    )
    return done, printed_metrics(done.stdout)


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return write_records(tmp_path_factory.mktemp("records") / "held_out.tfrecord", 20, vocab_size=40)


def model_of(**changes):
    return stored_small("pretraining", vocab_size=40, max_position_embeddings=16, **changes)


@pytest.mark.slow
def test_every_format_gives_the_same_measures(tmp_path, records):
    found = {}
    for name in FORMATS:
        formats.write(model_of(), name, str(tmp_path / name))
        more = [f"--bert_config_file={tmp_path}/tf1/bert_config.json"] if name == "tf1" else []
        done, found[name] = evaluate(
            tmp_path, f"--init_checkpoint={tmp_path / name}", f"--eval_input_file={records}", *more
        )
        assert done.returncode == 0, done.stderr
        assert set(found[name]) == {"loss", "mlm_loss", "nsp_loss", "mlm_accuracy", "nsp_accuracy", "mlm_perplexity"}
    wanted = found.pop("ours")
    assert math.log(wanted["mlm_perplexity"]) == pytest.approx(wanted["mlm_loss"], abs=1e-4)
    for name, measured in found.items():
        assert measured == pytest.approx(wanted, abs=2e-4), name


@pytest.mark.slow
def test_a_checkpoint_without_a_head_for_sentences_is_measured_on_words_and_one_without_words_is_refused(
    tmp_path, records
):
    model = model_of()
    words = {
        name: weight for name, weight in model.weights.items() if not name.startswith(("next_sentence/", "pooler/"))
    }
    formats.write(type(model)(**{**vars(model), "weights": words}), "hugging_face", str(tmp_path / "words"))
    done, found = evaluate(tmp_path, f"--init_checkpoint={tmp_path}/words", f"--eval_input_file={records}")
    assert done.returncode == 0 and "no head for sentences; only words are evaluated" in done.stdout, done.stderr
    assert set(found) == {"loss", "mlm_loss", "mlm_accuracy", "mlm_perplexity"}
    formats.write(formats.encoder_of(model), "hugging_face", str(tmp_path / "encoder"))
    done, _ = evaluate(tmp_path, f"--init_checkpoint={tmp_path}/encoder", f"--eval_input_file={records}")
    assert done.returncode == 1 and "new: masked_lm/" in done.stderr and "Traceback" not in done.stderr
    done, _ = evaluate(tmp_path, f"--eval_input_file={records}")
    assert done.returncode == 1 and "--output_dir: expected the folder of a run" in done.stderr


@pytest.mark.slow
def test_a_folder_with_more_words_is_measured(tmp_path, records):
    model = model_of()
    words = [*model.vocab[:5], *"abcdefghijklmno", *(f"##{letter}" for letter in "abcdefghijklmnopqrst")]
    formats.write(model, "tf1", str(tmp_path / "first"))
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    (tmp_path / "words.txt").write_text("ab\ncad\n", encoding="utf-8")
    done = run_here(
        "tools/resize_checkpoint.py",
        f"--vocab_file={tmp_path}/vocab.txt",
        f"--words_file={tmp_path}/words.txt",
        f"--bert_config_file={tmp_path}/first/bert_config.json",
        f"--init_checkpoint={tmp_path}/first/bert_model.ckpt",
        f"--output_dir={tmp_path}/more",
    )
    assert done.returncode == 0 and "vocab_size 42" in done.stdout, done.stderr
    (done, before), (again, after) = (
        evaluate(
            tmp_path,
            f"--init_checkpoint={tmp_path / name}",
            f"--bert_config_file={tmp_path / name}/bert_config.json",
            f"--eval_input_file={records}",
        )
        for name in ("first", "more")
    )
    assert done.returncode == again.returncode == 0, again.stderr
    assert after["nsp_loss"] == pytest.approx(before["nsp_loss"], abs=2e-4)
    # A new word's logit is the mean of its pieces' logits, so its probability is at most that of the most probable
    # piece.
    assert 0 < after["mlm_loss"] - before["mlm_loss"] < math.log(3)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("squad", {"max_seq_length": 48, "max_query_length": 8}),
        ("ner", {"labels": ["O", "B-X", "I-X"]}),
        ("retrieval", {}),
    ],
)
def test_answers_that_do_not_use_the_pooler_need_none(tmp_path, name, options):
    task = load_task(make_config(name, options=options))
    model, other = task.build_model(), task.build_model()
    save_config(task.config, str(tmp_path / "config.yaml"))
    checkpoints.weights_checkpoint(model).write(str(tmp_path / "ckpt-1"))
    stored = formats.read(str(tmp_path))
    without = {name: weight for name, weight in stored.weights.items() if not name.startswith("pooler/")}
    assert len(without) == len(stored.weights) - 2
    formats.write(dataclasses.replace(stored, weights=without), "hugging_face", str(tmp_path / "hf"))
    told: list[str] = []
    answering.take_all(task, other, str(tmp_path / "hf"), told.append)
    assert not [line for line in told if "not used" in line]
    wanted = checkpoints.named_weights(model)
    for weight, value in checkpoints.named_weights(other).items():
        if not weight.startswith("pooler/"):
            np.testing.assert_array_equal(value, wanted[weight])


def test_a_vocabulary_with_more_words_than_the_model_is_refused(tmp_path):
    (tmp_path / "vocab.txt").write_text(pathlib.Path(VOCAB).read_text(encoding="utf-8") + "zyx\n", encoding="utf-8")
    model, tokenizer = stored_small("span"), {"vocab_file": str(tmp_path / "vocab.txt")}
    formats.write(model, "hugging_face", str(tmp_path / "hf"))
    task = load_task(make_config("squad", options={"max_seq_length": 12, "max_query_length": 4}, tokenizer=tokenizer))
    with pytest.raises(ValueError, match=r"vocab\.txt: expected at most model\.vocab_size = 3000 entries, got 3001"):
        answering.take_all(task, task.build_model(), str(tmp_path / "hf"))


def test_variables_that_evaluation_does_not_use_are_told(tmp_path):
    task = load_task(make_config("squad", options={"max_seq_length": 12, "max_query_length": 4}))
    model, told = task.build_model(), []
    variables = {name: weight.numpy() for name, weight in checkpoints.named_weights(model).items()}
    stored = dataclasses.replace(stored_small("span"), config=task.config.model, weights=variables, vocab=None)
    formats.write(stored, "tf1", str(tmp_path))
    reader = tf.train.load_checkpoint(str(tmp_path / "bert_model.ckpt"))
    named = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()} | {
        "bert/adapter/kernel": np.ones(3)
    }
    tf1.write_checkpoint(named, str(tmp_path))
    answering.take_all(task, model, str(tmp_path), told.append)
    assert any(line.endswith("not used: bert/adapter/kernel") for line in told)
