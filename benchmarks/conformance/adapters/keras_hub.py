"""keras-hub on TensorFlow. It truncates pairs in other ways than 2018's code."""

PACKAGES, ENVIRONMENT, INSTALL = ("keras-hub", "keras"), ".venv", "make install"


def _tokenizer(given, kind="uncased"):
    import keras_hub

    plain = kind != "cased"
    return keras_hub.models.BertTokenizer(given.vocabulary(kind), lowercase=plain, strip_accents=plain)


def _inputs(given):
    names = {"input_ids": "token_ids", "input_mask": "padding_mask", "segment_ids": "segment_ids"}
    return {theirs: given.batch[name] for name, theirs in names.items()}


def _backbone(given):
    import keras_hub

    return keras_hub.models.BertBackbone.from_preset(given.weights("keras_hub"))


def tokens(given, kind):
    return _tokenizer(given, kind)(given.texts(kind))


def outputs(given):
    return _backbone(given)(_inputs(given))


def gradient(given):
    import tensorflow as tf

    backbone = _backbone(given)
    with tf.GradientTape() as tape:
        total = given.total(backbone(_inputs(given)), tf.reduce_sum)
    return tf.convert_to_tensor(tape.gradient(total, backbone.token_embedding.embeddings.value))


def masked_lm(given):
    import keras_hub
    import tensorflow as tf

    model = keras_hub.models.BertMaskedLM(_backbone(given))
    names = {"intermediate_dense/": "transform/dense/", "intermediate_layer_norm/": "transform/LayerNorm/"}
    read = tf.train.load_checkpoint(given.weights("tf1") + "/bert_model.ckpt").get_tensor
    for weight in model.masked_lm_head.weights:
        _, is_own, name = weight.path.partition("mlm_head/")
        for mine, of_2018 in names.items():
            name = name.replace(mine, of_2018)
        if is_own:
            weight.assign(read(f"cls/predictions/{name}"))
    return model(_inputs(given) | {"mask_positions": given.batch["masked_lm_positions"]})
