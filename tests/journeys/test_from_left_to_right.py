"""A left-to-right model keeps its direction through fine-tuning, prediction and export, with a BiLSTM on top."""

import dataclasses

import numpy as np
import pytest
from commands import run_here

from official_bert.config import Config, TokenizerConfig, save_config
from official_bert.interface.predictor import Predictor
from official_bert.models import checkpoints
from official_bert.models.pretrainer import Pretrainer
from official_bert.tasks.loading import restore_model

pytestmark = pytest.mark.slow
ROWS = [
    {"text": "the old atlas"},
    {"text": "it rained in three towns while the others borrowed an atlas"},
    {"text": ""},
]


@pytest.fixture(scope="module")
def pretrained(golden, small_config, tmp_path_factory):
    """Writes the folder of a pre-training run with random weights."""
    folder = tmp_path_factory.mktemp("pretrained")
    model = dataclasses.replace(small_config, attention="left_to_right")
    (folder / "vocab.txt").write_bytes((golden / "vocab_uncased.txt").read_bytes())
    save_config(
        Config(
            model=model,
            tokenizer=TokenizerConfig(vocab_file=str(folder / "vocab.txt")),
            options={"max_seq_length": 24, "objective": "next_token", "sentence_loss": False},
        ),
        str(folder / "config.yaml"),
    )
    checkpoints.weights_checkpoint(Pretrainer.make(model, {"next_sentence": False})).save(str(folder / "ckpt"))
    return folder


@pytest.mark.parametrize("bilstm_layers", [0, 1])
def test_a_classifier_answers_the_same_from_its_run_and_exported(pretrained, tmp_path, bilstm_layers):
    lines = "".join(
        f"{text},{label}\n" for text, label in (("the rain", "a"), ("an old atlas", "b")) for _ in range(20)
    )
    for name in ("train", "dev"):
        (tmp_path / f"{name}.csv").write_text(f"text,label\n{lines}", encoding="utf-8")
    done = run_here(
        "-m",
        "official_bert.run_finetuning",
        "--task=classification",
        f"--init_checkpoint={pretrained}",
        f"--train_file={tmp_path}/train.csv",
        f"--eval_file={tmp_path}/dev.csv",
        f"--output_dir={tmp_path}/run",
        "--max_seq_length=24",
        "--num_train_epochs=1",
        "--cache_dir=",
        "--allow_same_data",
        f"--set=model.bilstm_layers={bilstm_layers}",
    )
    assert done.returncode == 0, done.stderr
    config, model = restore_model(str(tmp_path / "run"))
    assert (config.model.attention, config.model.bilstm_layers) == ("left_to_right", bilstm_layers)
    assert model.encoder.settings["attention"] == "left_to_right"
    done = run_here(
        "-m",
        "official_bert.run_export",
        f"--checkpoint={tmp_path}/run",
        f"--output={tmp_path}/model",
        "--warmup_batch_sizes=",
    )
    assert done.returncode == 0, done.stderr
    ours, exported = (Predictor(str(tmp_path / place)).answer(ROWS) for place in ("run", "model"))
    for one, other in zip(ours, exported):
        np.testing.assert_allclose(one["probabilities"], other["probabilities"], atol=1e-5)
    refused = run_here(
        "tools/convert_checkpoint.py", f"--input={tmp_path}/run", "--to=hugging_face", f"--output={tmp_path}/hf"
    )
    assert refused.returncode == 1 and "attends in both directions, the model left_to_right" in refused.stderr
    assert not (tmp_path / "hf").exists()


def test_a_pre_trained_model_fills_the_next_word_and_is_exported(pretrained, tmp_path):
    done = run_here(
        "-m",
        "official_bert.run_export",
        f"--checkpoint={pretrained}",
        f"--output={tmp_path}/model",
        "--warmup_batch_sizes=",
    )
    assert done.returncode == 0, done.stderr
    texts = [{"text": "the [MASK]"}, {"text": "the [MASK] atlas rained"}]
    for place in (pretrained, tmp_path / "model"):
        first, second = Predictor(str(place)).answer(texts)
        # what follows plays no part
        np.testing.assert_allclose(first["probabilities"][0], second["probabilities"][0], rtol=1e-4)
        assert first["tokens"] == second["tokens"]
