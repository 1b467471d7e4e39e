"""What a task answers raw text, in plain Python: what the graph of its served model must answer too."""

import numpy as np
import tensorflow as tf
from oracles import squad, tagging, texts


def answers_of(task, model, rows):
    """Decodes what the model gives for each feature by itself, without padding."""
    oracle = {"squad": squad, "ner": tagging}.get(task.config.task, texts)
    features = oracle.encode(task, rows)
    predictions = []
    for feature in features:
        inputs = {key: tf.constant(np.asarray(value)[None]) for key, value in feature.items()
                  if key in ("input_ids", "input_mask", "segment_ids", "first_pieces")}
        found = task.predictions(model(inputs, training=False), inputs | {"example_weights": tf.ones([1])})
        predictions.append({key: value.numpy()[0] for key, value in found.items()})
    return oracle.decode(task, rows, features, predictions)
