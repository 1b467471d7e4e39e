"""Pre-training by replaced tokens (ELECTRA): batches, refusals, parts of a batch, and what a run's folder gives to
other tasks.
"""

import json

import numpy as np
import pytest
import tensorflow as tf
import yaml
from commands import run_here
from killed_runs import STEPS, check_killed_run
from made_checkpoints import WORDS
from made_pretraining import (
    S,
    data_files,
    make_config,
    resolve,
    weights_after_two_steps,
    write_records,
    write_unmasked_records,
    write_vocab,
)

from official_bert.config import Config, merge, to_dict
from official_bert.models import checkpoints
from official_bert.models.encoder import weights_by_name
from official_bert.models.interchange import formats
from official_bert.models.replaced_tokens import ReplacedTokenDetector, ReplacedTokenPretrainer
from official_bert.run_folder import RunFolder
from official_bert.runs import whole_run
from official_bert.runs.configuration import run_config
from official_bert.tasks.loading import load_task, restore_model
from official_bert.training.machines.cluster import Placement
from official_bert.training.trainer import Trainer

ELECTRA = {
    "hidden_act": "gelu_erf",
    "pooler_act": "gelu_erf",
    "masked_lm_act": "gelu_erf",
    "embedding_size": 12,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
OPTIONS = {"objective": "replaced_tokens", "generator_width": 0.5}


def config_of(options=None, model=None, **more):
    return make_config(model=merge(ELECTRA, model or {}), options=merge(OPTIONS, options or {}), **more)


def test_the_objective_has_defaults_of_its_own_that_a_user_may_change():
    masking = load_task(config_of()).options.masking
    assert (masking.strategy, masking.mask_rate, masking.keep_rate, masking.rate) == ("token_draws", 0.85, 0.15, 0.15)
    other = load_task(config_of({"masking": {"strategy": "whole_word", "rate": 0.25}})).options.masking
    assert (other.strategy, other.mask_rate, other.rate) == ("whole_word", 0.85, 0.25)
    assert load_task(make_config()).options.masking.strategy == "token"


@pytest.mark.parametrize(
    ("options", "model", "told"),
    [
        (
            {"sentence_loss": True},
            {},
            "sentence_loss false or sentence_task none .* got sentence_task nsp and sentence_loss true",
        ),
        (
            {},
            {"attention": "left_to_right"},
            "model.attention bidirectional and model.bilstm_layers 0 .* got left_to_right and 0",
        ),
        ({"adds_first": True, "pack": True}, {}, "adds_first false beside pack"),
        ({"generator_width": 1.5}, {}, "generator_width: expected a share above 0, at most 1, got 1.5"),
        ({"generator_layers": 0.0}, {}, "generator_layers: expected a share above 0, at most 1, got 0.0"),
        ({"replaced_weight": -1.0}, {}, "replaced_weight: expected a number above 0, got -1.0"),
        (
            {"objective": "masked_lm"},
            {},
            r"generator_width: expected options.objective: replaced_tokens \(not masked_lm\) with it, got 0.5 without",
        ),
        ({"max_predictions_per_seq": 0}, {}, "max_predictions_per_seq: expected at least 1"),
        (
            {},
            {"pooler_norm": True, "embedding_size": 0},
            r"^config.model.pooler_norm: expected false beside options.objective replaced_tokens, .*generator_width "
            r"0.5\)",
        ),
    ],
)
def test_what_does_not_go_with_it_is_refused(options, model, told):
    with pytest.raises(ValueError, match=told) as error:
        load_task(config_of(options, model)).options  # noqa: B018
    assert "\n" not in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize("sharing", ["shared", "disentangled"])
def test_parts_of_a_batch_learn_as_the_whole_one_does(tmp_path, sharing):
    path, found = write_records(tmp_path / "train", 64), {}
    for parts in (1, 4):
        config = config_of({"embedding_sharing": sharing}, training={"accumulation_steps": parts})
        found[parts] = weights_after_two_steps(resolve(config, path))
    for name, weight in found[1].items():
        np.testing.assert_allclose(found[4][name], weight, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.slow
def test_rows_of_another_epoch_have_other_guesses(tmp_path):
    run = resolve(config_of(), write_records(tmp_path / "train", 64))
    # the first batch of two epochs
    one, two, again = (next(iter(run.train.dataset(start).take(1))) for start in (0, 2, 0))
    assert {name: value.shape for name, value in one.items()} == {
        name: spec.shape for name, spec in run.task.data.batch_spec(32).items()
    }
    np.testing.assert_array_equal(one["sample_keys"], again["sample_keys"])
    assert not np.isin(one["sample_keys"], two["sample_keys"]).any()


@pytest.mark.slow
def test_packed_rows_are_told_too(tmp_path):
    run = resolve(
        config_of({"pack": True, "max_instances_per_row": 3, "max_seq_length": 32}, {"max_position_embeddings": 32}),
        write_records(tmp_path / "train", 96, max_seq_length=32),
    )
    batch = next(iter(run.train.dataset()))
    assert (
        len(np.unique(batch["sample_keys"], axis=0)) == len(batch["sample_keys"])
        and batch["instance_weights"].numpy().sum() > 32
    )
    assert {name: value.shape for name, value in batch.items()} == {
        name: spec.shape for name, spec in run.task.data.batch_spec(32).items()
    }
    outputs = run.model(batch)
    used, corrupted = batch["masked_lm_weights"].numpy() > 0, outputs["replaced"].numpy()
    assert 0 < corrupted.sum() <= used.sum() and not corrupted[batch["input_mask"].numpy() == 0].any()


def write_run(folder, config):
    """Writes the folder of a run of so many weights, untrained."""
    model = load_task(config).build_model()
    for number, weight in enumerate(weights_by_name(model).values()):
        weight.assign(np.random.default_rng(number).normal(0, 0.1, weight.shape))
    RunFolder(str(folder)).make()
    RunFolder(str(folder)).write_config(config)
    checkpoints.weights_checkpoint(model).write(str(folder / "ckpt-1"))
    return model


@pytest.mark.parametrize("sharing", ["shared", pytest.param("disentangled", marks=pytest.mark.slow)])
def test_a_run_is_a_discriminator_for_every_task_and_two_folders_for_hugging_face(tmp_path, sharing):
    config = config_of({"embedding_sharing": sharing})
    model = write_run(tmp_path / "run", config)
    encoder = {name: weight.numpy() for name, weight in weights_by_name(model).items()}
    if sharing == "disentangled":
        encoder["embeddings/word_embeddings"] = (
            encoder["embeddings/word_embeddings_difference"] + encoder["generator/encoder/embeddings/word_embeddings"]
        )
    task = load_task(
        Config(task="classification", model=config.model, options={"labels": ("a", "b"), "max_seq_length": S})
    )
    taken = task.build_model()
    result = checkpoints.initialize_from(taken, str(tmp_path / "run"), task.answers.classes)
    assert set(result.new) == {"classifier/output_weights", "classifier/output_bias"} and not result.differences
    for name in ("embeddings/word_embeddings", "layer_0/attention/query/kernel"):
        np.testing.assert_allclose(weights_by_name(taken)[name], encoder[name], atol=1e-7)
    formats.write(formats.read(str(tmp_path / "run")), "hugging_face", str(tmp_path / "there"))
    both = [json.loads((tmp_path / "there" / name / "config.json").read_text()) for name in ("", "generator")]
    assert [one["architectures"] for one in both] == [["ElectraForPreTraining"], ["ElectraForMaskedLM"]]
    assert [(one["hidden_size"], one["embedding_size"], one["intermediate_size"]) for one in both] == [
        (16, 12, 32),
        (8, 12, 16),
    ]
    again = load_task(config).build_model()
    new = checkpoints.initialize_from(again, str(tmp_path / "there")).new
    assert new and all("pooler/" in name for name in new)  # which Hugging Face's classes lack
    found = {name: weight.numpy() for name, weight in weights_by_name(again).items()}
    for name, weight in weights_by_name(model).items():
        if "pooler" not in name:
            np.testing.assert_allclose(found[name], weight, atol=1e-6, err_msg=name)
    with pytest.raises(ValueError, match="a run that detects replaced tokens also needs a generator, .*--leave_out"):
        formats.write(formats.read(str(tmp_path / "run")), "ours", str(tmp_path / "ours"))
    values = run_config.checkpoint_values(str(tmp_path / "run"), pretraining=True).values["options"]
    assert values == {"objective": "replaced_tokens", "generator_width": 0.5, "embedding_sharing": sharing}


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        OPTIONS,
        {"objective": "masked_lm", "boundary_weight": 1.0, "masking": {"strategy": "span"}},
        {"objective": "masked_diffusion", "sentence_task": "none"},
    ],
    ids=["replaced_tokens", "boundary", "masked_diffusion"],
)
def test_a_run_killed_three_times_ends_as_the_one_that_was_not(tmp_path, options):
    write_vocab(tmp_path / "vocab.txt")
    write_unmasked_records(tmp_path / "train", 120)
    training = {
        "steps": STEPS,
        "batch_size": 16,
        "log_every": 1,
        "save_every": 3,
        "steps_per_loop": 2,
        "eval_batch_size": 16,
    }
    (tmp_path / "config.yaml").write_text(
        yaml.safe_dump(
            to_dict(make_config(model=ELECTRA | {"hidden_dropout_prob": 0.1}, options=options, training=training))
        )
    )

    def command(output):
        return [
            "-m",
            "official_bert.run_pretraining",
            f"--config={tmp_path}/config.yaml",
            f"--input_file={tmp_path}/train",
            f"--eval_input_file={tmp_path}/train",
            f"--vocab_file={tmp_path}/vocab.txt",
            f"--output_dir={output}",
            "--nodo_lower_case",
        ]

    check_killed_run(tmp_path, command)


@pytest.mark.slow
@pytest.mark.parametrize("sharing", ["shared", "disentangled"])
def test_the_commands_take_a_run_as_a_discriminator(tmp_path, sharing):
    (tmp_path / "vocab.txt").write_text("\n".join([*WORDS, *map(str, range(20))]) + "\n")
    config = config_of(
        {"embedding_sharing": sharing}, tokenizer={"vocab_file": str(tmp_path / "vocab.txt"), "do_lower_case": False}
    )
    pair = write_run(tmp_path / "run", config)
    converted = run_here(
        "tools/convert_checkpoint.py", "--to=hugging_face", f"--input={tmp_path}/run", f"--output={tmp_path}/there"
    )
    assert converted.returncode == 0 and "largest difference of generator's mlm_logits" in converted.stdout, (
        converted.stderr
    )
    assert f"{tmp_path}/there/generator: its generator" in converted.stdout
    (tmp_path / "train.tsv").write_text("text\tlabel\n" + "a b c\tx\nd e f\ty\n" * 8)
    tuned = run_here(
        "-m",
        "official_bert.run_finetuning",
        "--task=classification",
        f"--init_checkpoint={tmp_path}/run",
        f"--train_file={tmp_path}/train.tsv",
        f"--output_dir={tmp_path}/tuned",
        "--set=training.steps=2",
        "--set=training.epochs=0",
        "--set=training.batch_size=8",
        "--set=options.max_seq_length=16",
    )
    assert tuned.returncode == 0 and "not used: replaced" in tuned.stdout, tuned.stderr
    write_records(tmp_path / "held_out", 40)
    measured = run_here(
        "-m",
        "official_bert.run_pretraining",
        "--mode=eval",
        f"--init_checkpoint={tmp_path}/run",
        f"--eval_input_file={tmp_path}/held_out",
        "--set=options.max_seq_length=16",
        "--set=options.max_predictions_per_seq=3",
        "--set=training.eval_batch_size=8",
    )
    assert measured.returncode == 0 and "replaced_recall = " in measured.stdout, measured.stderr
    _, restored = restore_model(str(tmp_path / "run"))
    assert isinstance(restored, ReplacedTokenDetector) and not isinstance(restored, ReplacedTokenPretrainer)
    exported = run_here(
        "-m",
        "official_bert.run_export",
        "--head=embeddings",
        f"--checkpoint={tmp_path}/run",
        f"--output={tmp_path}/vectors",
    )
    assert exported.returncode == 0, exported.stderr
    rows = {
        name: np.array([row], np.int32)
        for name, row in (("input_ids", [2, 5, 6, 7, 3]), ("input_mask", [1] * 5), ("segment_ids", [0] * 5))
    }
    served = tf.saved_model.load(f"{tmp_path}/vectors/ids/1").signatures["serving_default"]
    vectors = served(**{name: tf.constant(value) for name, value in rows.items()})["embedding"]
    np.testing.assert_allclose(
        vectors, pair.encoder(rows)["sequence_output"].numpy().mean(axis=1), rtol=1e-4, atol=1e-5
    )
    resized = run_here(
        "tools/resize_checkpoint.py",
        f"--init_checkpoint={tmp_path}/run",
        f"--output_dir={tmp_path}/resized",
        "--max_seq_length=32",
        "--to=hugging_face",
    )
    assert resized.returncode == 0 and "its generator is left out" in resized.stdout, resized.stderr
    assert not (tmp_path / "resized" / "generator").exists()
    refused = run_here("-m", "official_bert.run_export", f"--checkpoint={tmp_path}/run", f"--output={tmp_path}/served")
    assert refused.returncode == 1 and "a head that detects replaced tokens cannot be served" in refused.stderr
    filled = run_here(
        "-m", "official_bert.run_predict", "--task=fill_mask", f"--model={tmp_path}/there/generator", "a [MASK] c"
    )
    assert filled.returncode == 0 and filled.stdout.strip(), filled.stderr


@pytest.mark.slow
def test_the_generator_learns_its_words_and_the_discriminator_to_tell_them(tmp_path):
    path = write_records(tmp_path / "train", 256)
    config = config_of(
        {"embedding_sharing": "disentangled"},
        {"num_hidden_layers": 2},
        optimizer={"learning_rate": 1e-2},
        training={"steps": 150, "log_every": 50, "save_every": 150},
    )
    trained = whole_run.train(load_task(config), data_files(path, path), str(tmp_path / "run"), Placement())
    first = Trainer(load_task(config).recipe(load_task(config).build_model()), tf.distribute.get_strategy(), 1)
    begun, _ = first.evaluate(trained.resolved.held_out.source)
    assert trained.metrics["mlm_accuracy"] > 0.5 > 2 * begun["mlm_accuracy"]
    assert trained.metrics["replaced_loss"] < 0.75 * begun["replaced_loss"]
