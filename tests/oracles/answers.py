"""A task's answers to raw text in plain Python, with which the graph of its served model is compared."""

import numpy as np
import tensorflow as tf
from oracles import squad, tagging, texts


def answers_of(task, model, rows):
    """Runs the model on each feature alone, without padding, and decodes the outputs."""
    oracle = {"squad": squad, "ner": tagging}.get(task.config.task, texts)
    features = oracle.encode(task, rows)
    predictions = []
    for feature in features:
        inputs = {
            key: tf.constant(np.asarray(value)[None])
            for key, value in feature.items()
            if key in ("input_ids", "input_mask", "segment_ids", "first_pieces")
        }
        found = task.objective.predictions(model(inputs, training=False), inputs | {"example_weights": tf.ones([1])})
        predictions.append({key: value.numpy()[0] for key, value in found.items()})
    return oracle.decode(task, rows, features, predictions)
