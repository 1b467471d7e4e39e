"""What a task's served model answers against the task's own way from raw text to an answer, in NumPy and plain Python."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_bert.config import Config, TokenizerConfig
from official_bert.serving.from_task import ServingOptions, make_served_model
from official_bert.training.task import load_task

FIRST = ["The surveyor asked for the price.", "Señora Núñez", "the end " * 20, "中国 12%"]
SECOND = ["What is it?", "", "no", "nobody objected " * 9]
TASKS = {
    "two_texts": ("classification", {"labels": ["no", "être"], "text_pair_column": "b", "max_seq_length": 20}),
    "several_labels": ("classification", {"kind": "multi_label", "labels": ["a", "b", "c"], "max_seq_length": 24}),
    "score": ("classification", {"kind": "regression", "max_seq_length": 24}),
    "glue": ("glue", {"dataset": "mrpc", "max_seq_length": 20}),
    "swag": ("swag", {"max_seq_length": 24}),
    "squad_2": ("squad", {"max_seq_length": 28, "doc_stride": 7, "max_query_length": 6, "max_answer_length": 5,
                          "version_2_with_negative": True, "null_score_diff_threshold": 0.3}),
}


def rows_for(inputs):
    """Raw rows with the served model's inputs."""
    columns = {"text": FIRST, "text_pair": SECOND, "question": SECOND, "context": [text * 3 for text in FIRST],
               "choices": [[text, *SECOND[1:]] for text in FIRST]}
    return [{name: columns[name][index] for name in inputs} for index in range(len(FIRST))]


def task_answers(task, model, rows):
    """encode -> the model, one feature at a time -> decode."""
    features = task.encode(rows)
    predictions = []
    for feature in features:
        inputs = {name: np.asarray(feature[name], np.int32)[None] for name in ("input_ids", "input_mask", "segment_ids")}
        outputs = task.predictions(model(inputs, training=False), inputs)
        predictions.append({name: value.numpy()[0] for name, value in outputs.items()})
    return task.decode(rows, features, predictions)


@pytest.mark.parametrize("name", TASKS)
def test_a_served_task_answers_as_the_task_itself(golden, small_config, name):
    keras.utils.set_random_seed(5)
    kind, options = TASKS[name]
    task = load_task(Config(task=kind, model=small_config, options=options,
                            tokenizer=TokenizerConfig(vocab_file=str(golden / "vocab_uncased.txt"))))
    model = task.build_model()
    served = make_served_model(task, model, ServingOptions())
    rows = rows_for(served.text_inputs)
    found = served.answer_text({key: tf.constant([row[key] for row in rows]) for key in served.text_inputs})
    for index, wanted in enumerate(task_answers(task, model, rows)):
        for key, value in wanted.items():
            mine = found[key].numpy()[index]
            if isinstance(value, str):
                assert mine.decode() == value, key
            elif key == "labels":
                assert [label.decode() for label in mine if label] == list(value)
            else:
                np.testing.assert_allclose(mine, value, atol=1e-4, err_msg=key)


def test_embeddings_are_made_of_any_tasks_encoder(golden, small_config):
    task = load_task(Config(task="glue", model=small_config, options={"dataset": "stsb", "max_seq_length": 24},
                            tokenizer=TokenizerConfig(vocab_file=str(golden / "vocab_uncased.txt"))))
    served = make_served_model(task, task.build_model(), ServingOptions(head="embeddings"))
    assert served.answer_text({"text": tf.constant(FIRST)})["embedding"].shape == [4, small_config.hidden_size]
