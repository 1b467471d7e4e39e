"""tf-models-official: the encoder. Its own tool reads the checkpoint of 2018."""

import json
import pathlib

from adapters.tf_models import _tool


def _encoder(given):
    import tensorflow as tf
    from official.modeling import tf_utils
    from official.nlp.modeling import networks

    config, target = given.weights("tf1") + "/bert_config.json", given.weights("tf_models") + "/ckpt"
    _tool(
        "tools.tf2_bert_encoder_checkpoint_converter",
        bert_config_file=config,
        checkpoint_to_convert=given.weights("tf1") + "/bert_model.ckpt",
        converted_checkpoint_path=target,
    )
    names = ("vocab_size", "hidden_size", "num_attention_heads", "intermediate_size", "type_vocab_size")
    sizes = {name: value for name, value in json.loads(pathlib.Path(config).read_text()).items() if name in names}
    activation = tf_utils.get_activation("gelu")
    encoder = networks.BertEncoder(**sizes, num_layers=3, max_sequence_length=64, activation=activation)
    tf.train.Checkpoint(encoder=encoder).restore(target + "-1").assert_existing_objects_matched()
    names = {"input_ids": "input_word_ids", "input_mask": "input_mask", "segment_ids": "input_type_ids"}
    return encoder, [tf.constant(given.batch[name], tf.int32) for name in names]


def outputs_of(encoder, inputs):
    return dict(zip(("sequence_output", "pooled_output"), encoder(inputs)))


def outputs(given):
    return outputs_of(*_encoder(given))


def gradient(given):
    import tensorflow as tf

    encoder, inputs = _encoder(given)
    with tf.GradientTape() as tape:
        total = given.total(outputs_of(encoder, inputs), tf.reduce_sum)
    return tf.convert_to_tensor(tape.gradient(total, encoder.get_embedding_table()))
