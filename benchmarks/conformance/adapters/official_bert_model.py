"""official_bert: the model, the optimizer, metrics."""

import numpy as np


def _model(given):
    import official_bert

    return official_bert.load_model(given.weights("tf1"))


def _encoded(model, given):
    return model.encoder({name: given.batch[name] for name in ("input_ids", "input_mask", "segment_ids")})


def outputs(given):
    return {name: _encoded(_model(given), given)[name] for name in given.directions}


def gradient(given):
    import tensorflow as tf

    model = _model(given)
    with tf.GradientTape() as tape:
        total = given.total(_encoded(model, given), tf.reduce_sum)
    return tf.convert_to_tensor(tape.gradient(total, model.encoder.embeddings.word_embeddings.value))


def masked_lm(given):
    return _model(given)(given.batch)["mlm_logits"]


def next_sentence(given):
    return _model(given)(given.batch)["nsp_logits"]


def adamw(given):
    import keras
    import tensorflow as tf

    from official_bert.training.optimization import BertOptimizer

    asked = given.values["adamw"]
    weight = keras.Variable(given.adamw["weight"], dtype="float32")
    optimizer = BertOptimizer(10**9, peak_learning_rate=asked["rate"], schedule="constant")
    for gradient in given.adamw["gradients"]:
        optimizer.apply([tf.constant(gradient, tf.float32)], [weight])
    return weight


def glue(given):
    from official_bert.tasks.texts.metrics import measure

    asked = {name: np.array(values) for name, values in given.values["glue"].items()}
    of_classes = measure(("accuracy", "f1", "matthews"), asked["labels"], np.eye(2)[asked["predictions"]])
    return of_classes | measure(("pearson", "spearman"), asked["y"], asked["x"][:, None])
