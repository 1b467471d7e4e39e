"""A process of the parity tests: the same 20 steps on several arrangements of devices; writes losses and weights of
each.

    run_for_parity.py RECORDS OUTPUT_FOLDER [--plain] ARRANGEMENT...

With `--plain` TensorFlow does not optimise the graphs.

An arrangement is REPLICAS-ACCUMULATION, such as 2-1, or with `-next_token` behind it for a left-to-right model,
`-replaced_tokens` for a discriminator and its generator, `-boundary` for spans, `-packed` for packed rows,
`-masked_diffusion` for records without masks, whose vocabulary lies beside them, or `-text_to_text` for a table of
sources and answers. The name of a relative of BERT (a folder of tests/golden/family) may stand behind that, or alone.
"""

import dataclasses
import pathlib
import sys

import keras
import made_finetuning
import numpy as np
import tensorflow as tf
from made_pretraining import S, V, make_config, resolve

from official_bert.models.first_weights import draw_first_weights
from official_bert.models.interchange import formats
from official_bert.training.machines import distribution
from official_bert.training.machines.cluster import Placement
from official_bert.training.step import fold_seeds
from official_bert.training.trainer import Trainer

FAMILY = pathlib.Path(__file__).parent / "golden" / "family"
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def replicas_of(count):
    """Returns a strategy on the first `count` logical CPU devices."""
    if count == 1:
        return tf.distribute.get_strategy()
    return tf.distribute.MirroredStrategy(
        [f"CPU:{number}" for number in range(count)], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )


def train(records, strategy, accumulation, *kinds):
    """Returns the losses of 20 steps and the weights after them."""
    relatives = [kind for kind in kinds if (FAMILY / kind).exists()]
    config = config_of(
        next((kind for kind in kinds if kind not in relatives), ""),
        next(map(relative_of, relatives), {"vocab_size": V}) | NO_DROPOUT,
        accumulation,
        str(pathlib.Path(records).with_name("vocab.txt")),
    )
    keras.utils.set_random_seed(config.seed)
    with strategy.scope():
        resolved = resolve(config, records)
        draw_first_weights(resolved.model, config.seed)
    trainer = Trainer(resolved.recipe, strategy, 20)
    iterator = iter(distribution.distribute(resolved.train, strategy))
    rows = np.concatenate([trainer.run_steps(iterator, tf.constant(10)).numpy() for _ in range(2)])
    weights = {variable.path.partition("/")[2]: variable.numpy() for variable in trainer.model.trainable_variables}
    return {"losses": rows[:, 0], "replicas": strategy.num_replicas_in_sync} | weights


def config_of(kind, model, accumulation, vocab_file):
    """Returns the configuration of a kind of training; records with masks need no vocabulary."""
    training, tokenizer = {"accumulation_steps": accumulation}, {"vocab_file": vocab_file}
    if kind == "text_to_text":
        options = {"max_seq_length": S, "answer_length": 4}
        training |= {"batch_size": 32, "steps": 20, "epochs": 0.0}
        return made_finetuning.make_config(
            kind,
            model=model,
            options=options,
            training=training,
            tokenizer=tokenizer,
            optimizer={"learning_rate": 1e-4},
        )
    if kind == "masked_diffusion":
        options = {"objective": kind, "sentence_task": "none"}
        return make_config(model=model, options=options, training=training, tokenizer=tokenizer)
    if kind == "next_token":
        model |= {"attention": "left_to_right"}
    options = {"objective": kind} if kind in ("next_token", "replaced_tokens") else {"pack": kind == "packed"}
    return make_config(model=model, options=options | {"boundary_weight": float(kind == "boundary")}, training=training)


def relative_of(kind):
    """Returns the model of a relative; it has two segments if it has any, because the records do."""
    model = dataclasses.asdict(
        formats.read(str(next(path for path in (FAMILY / kind).iterdir() if path.is_dir()))).config
    )
    own = {"vocab_size": V, "type_vocab_size": 2 * bool(model["type_vocab_size"]), "initializer_range": 0.1}
    return model | own


def dropped_outputs(records, strategy):
    """Returns the outputs of two replicas for the same rows in training: with Keras' own seeds, and with ours."""
    with strategy.scope():
        resolved = resolve(make_config(model={"hidden_dropout_prob": 0.5}), records)
    model = resolved.model
    batch = next(iter(resolved.train.dataset()))

    def keras_seeds():
        return model(dict(batch), training=True)["nsp_logits"]

    def our_seeds():
        place = tf.distribute.get_replica_context().replica_id_in_sync_group
        seeds = fold_seeds(model.non_trainable_variables, 1, tf.constant(0), tf.cast(place, tf.int32))
        weights = [tf.convert_to_tensor(variable.value) for variable in model.trainable_variables]
        return model.stateless_call(weights, seeds, dict(batch), training=True)[0]["nsp_logits"]

    return {
        name: np.stack(strategy.experimental_local_results(tf.function(lambda f=function: strategy.run(f))()))
        for name, function in (("keras_seeds", keras_seeds), ("our_seeds", our_seeds))
    }


def main(records, folder, *arrangements):
    """Writes ARRANGEMENT.npz for each, and with 1-1 dropout.npz."""
    distribution.make_strategy(Placement(strategy="mirrored", num_cpu_devices=4))
    if arrangements[0] == "--plain":
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
        arrangements = arrangements[1:]
    for arrangement in arrangements:
        replicas, accumulation, *kind = arrangement.split("-")
        np.savez(f"{folder}/{arrangement}.npz", **train(records, replicas_of(int(replicas)), int(accumulation), *kind))
    if "1-1" in arrangements:
        np.savez(f"{folder}/dropout.npz", **dropped_outputs(records, replicas_of(2)))


if __name__ == "__main__":
    main(*sys.argv[1:])
