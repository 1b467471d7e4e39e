"""Left-to-right pre-training, and pre-training without a loss of sentences, beside hand-worked batches and losses."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from made_pretraining import data_files, make_config, resolve, weights_after_two_steps, write_records
from oracles.records import encode_example, write_tfrecords

from official_bert.data.record_files import records
from official_bert.models.encoder import weights_by_name
from official_bert.models.pretrainer import Pretrainer
from official_bert.runs import whole_run
from official_bert.tasks.loading import load_task
from official_bert.tasks.pretraining.next_token import next_token_batch
from official_bert.tasks.pretraining.served import ServedNextToken
from official_bert.training.machines.cluster import Placement

LEFT_TO_RIGHT = {"attention": "left_to_right", "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
OPTIONS = {"objective": "next_token", "sentence_loss": False}


def test_the_token_after_each_place_is_predicted_also_from_masked_records():
    # [CLS] 7 8 9 [SEP] padding, with 7 masked (its id is 4) and 9 replaced by 11; the third prediction is unused.
    batch = {
        "input_ids": [[2, 4, 8, 11, 3, 0]],
        "input_mask": [[1, 1, 1, 1, 1, 0]],
        "segment_ids": [[0, 0, 0, 1, 1, 0]],
        "masked_lm_positions": [[1, 3, 0]],
        "masked_lm_ids": [[7, 9, 0]],
        "masked_lm_weights": [[1.0, 1.0, 0.0]],
        "next_sentence_labels": [[1]],
    }
    found = next_token_batch({name: tf.constant(value) for name, value in batch.items()})
    wanted = {
        "input_ids": [[2, 7, 8, 9, 3, 0]],
        "masked_lm_positions": [[0, 1, 2, 3, 4]],
        "masked_lm_ids": [[7, 8, 9, 3, 0]],
        "masked_lm_weights": [[1.0, 1.0, 1.0, 1.0, 0.0]],
    }
    assert {name: value.numpy().tolist() for name, value in found.items()} == {
        name: batch[name] for name in ("input_mask", "segment_ids", "next_sentence_labels")
    } | wanted


def test_records_without_masks_need_no_vocabulary(tmp_path):
    features = records.unmasked_features(16)
    row = {
        "input_ids": [2, 7, 8, 3, *[0] * 12],
        "input_mask": [1] * 4 + [0] * 12,
        "segment_ids": [0] * 16,
        "word_starts": [0] * 16,
        "next_sentence_labels": [0],
        "schema_version": [records.SCHEMA_VERSION],
    }
    write_tfrecords(str(tmp_path / "train"), [encode_example(features, row)] * 2)
    found = resolve(make_config(model=LEFT_TO_RIGHT, options=OPTIONS, training={"batch_size": 2}), tmp_path / "train")
    batch = next(iter(found.train.dataset()))
    assert batch["masked_lm_ids"].numpy()[0].tolist() == [7, 8, 3, *[0] * 12]
    assert {name: value.shape for name, value in batch.items()} == {
        name: spec.shape for name, spec in found.task.data.batch_spec(2).items()
    }


def test_the_loss_is_that_of_every_next_real_token(tmp_path):
    found = resolve(make_config(model=LEFT_TO_RIGHT, options=OPTIONS), write_records(tmp_path / "train", 32))
    batch = next(iter(found.train.dataset()))
    outputs = found.model(batch)
    ids, mask = batch["input_ids"].numpy(), batch["input_mask"].numpy()
    rows = found.model.encoder(batch)["sequence_output"]
    logits = found.model.masked_lm(rows, found.model.encoder.embeddings.word_embeddings).numpy()
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    wanted = -sum(
        logs[row, place, ids[row, place + 1]]
        for row in range(len(ids))
        for place in range(ids.shape[1] - 1)
        if mask[row, place + 1]
    )
    loss, weight = found.task.objective.losses(outputs, batch)["next_token"]
    assert float(weight) == mask[:, 1:].sum() == float(found.task.objective.weights(batch)["next_token"])
    np.testing.assert_allclose(loss, wanted, rtol=1e-4)
    assert found.task.objective.names == ("next_token",) and set(found.task.objective.counters(outputs, batch)) == {
        "next_token_accuracy"
    }


@pytest.mark.slow  # the weights of its loss are tested above, the sums of micro-batches in test_step
def test_parts_of_a_batch_learn_as_the_whole_one_does(tmp_path):
    path, found = write_records(tmp_path / "train", 64), {}
    for parts in (1, 4):
        config = make_config(model=LEFT_TO_RIGHT, options=OPTIONS, training={"accumulation_steps": parts})
        found[parts] = weights_after_two_steps(resolve(config, path))
    for name, weight in found[1].items():
        np.testing.assert_allclose(found[4][name], weight, rtol=1e-4, atol=1e-6, err_msg=name)


def test_without_the_loss_of_sentences_their_records_teach_words_alone(tmp_path):
    path = write_records(tmp_path / "train", 32)
    found = resolve(make_config(options={"sentence_loss": False}), path)
    assert found.task.objective.names == ("mlm",) and not [
        name for name in weights_by_name(found.model) if "next_sentence" in name
    ]
    batch = next(iter(found.train.dataset()))
    assert batch["segment_ids"].numpy().any() and list(found.task.objective.losses(found.model(batch), batch)) == [
        "mlm"
    ]


def test_a_blank_is_filled_with_what_may_follow_the_text_before_it(golden, small_config, graph_tokenizer, softmax):
    model = Pretrainer.make(dataclasses.replace(small_config, attention="left_to_right"), {"next_sentence": False})
    served = ServedNextToken(model, graph_tokenizer, 32, top_k=3)
    found = served.answer_text({"text": tf.constant(["the [MASK] of"])})
    ids = [graph_tokenizer.special_id("[CLS]"), *graph_tokenizer.tokenize(tf.constant(["the"])).values.numpy()]
    rows = {
        "input_ids": np.array([ids]),
        "input_mask": np.ones((1, len(ids)), int),
        "segment_ids": np.zeros((1, len(ids)), int),
    }
    logits = model({**rows, "masked_lm_positions": np.array([[len(ids) - 1]])})["mlm_logits"].numpy()[0, 0]
    best = np.argsort(-logits)[:3]
    np.testing.assert_allclose(found["probabilities"].numpy()[0, 0], softmax(logits)[best], rtol=1e-4)


@pytest.mark.parametrize(
    ("model", "options", "told"),
    [
        ({}, {}, "expected model.attention left_to_right .* got bidirectional and 0"),
        ({"attention": "left_to_right", "bilstm_layers": 1}, {}, "got left_to_right and 1"),
    ],
)
def test_an_objective_that_sees_its_answers_is_refused(model, options, told):
    with pytest.raises(ValueError, match=f"config.options.objective: next_token: .*{told}"):
        load_task(make_config(model=model, options=OPTIONS | options))


def test_phases_learn_the_same():
    phases = [{"steps": 1}, {"steps": 1, "options": {"objective": "masked_lm"}}]
    with pytest.raises(ValueError, match=r"config.phases\[1\].options.objective: expected that of the run, next_token"):
        load_task(make_config(model=LEFT_TO_RIGHT, options=OPTIONS, phases=phases))


@pytest.mark.slow
def test_the_next_token_of_toy_data_is_learned_and_training_resumes(tmp_path):
    path = write_records(tmp_path / "train", 256)
    config = make_config(
        model=LEFT_TO_RIGHT, options=OPTIONS, optimizer={"learning_rate": 1e-2}, training={"steps": 60}
    )
    trained = whole_run.train(load_task(config), data_files(path, path), str(tmp_path / "run"), Placement())
    assert trained.metrics["next_token_accuracy"] > 0.8
