"""The pre-training step of one library, in a process of its own that `benchmarks/pretraining_step.py` starts and asks
in turns.

    # then, on standard input, numbers of steps
    python benchmarks/step_contenders.py ours '{"hidden_size": 128, ...}'

Each step is forward, backward, clipping of the global gradient at 1 and AdamW, for masked LM (S * 15 % positions a row)
and next sentence, or for replaced tokens if the size has a `generator`, with dropout, on one batch of random ids. The
answer to a line is a JSON line with the seconds of each step; an empty line ends the process with its peak memory,
beyond what it held before its first step and beyond its imports. Nothing of ours is imported but by `ours`: the PyTorch
contenders run in another environment.
"""

import importlib
import json
import os
import sys
import time

import numpy as np

RATE, DECAY = 1e-4, 0.01


def make_arrays(size: dict) -> dict[str, np.ndarray]:
    """Returns a batch of full rows."""
    rng, (rows, length) = np.random.default_rng(0), (size["batch_size"], size["length"])
    predicted = length * 15 // 100
    return {
        "input_ids": rng.integers(0, size["vocab_size"], (rows, length)),
        "segment_ids": rng.integers(0, 2, (rows, length)),
        "input_mask": np.ones((rows, length), np.int64),
        "masked_lm_positions": np.sort(np.stack([rng.permutation(length)[:predicted] for _ in range(rows)]), axis=1),
        "masked_lm_ids": rng.integers(0, size["vocab_size"], (rows, predicted)),
        "next_sentence_labels": rng.integers(0, 2, (rows, 1)),
    }


def ours(size: dict):
    """official_bert's trainer."""
    import tensorflow as tf

    from official_bert.config import load_config
    from official_bert.tasks.loading import load_task
    from official_bert.training.machines import distribution
    from official_bert.training.machines.cluster import Placement
    from official_bert.training.machines.distribution import make_strategy
    from official_bert.training.trainer import Trainer

    arrays, replaced = make_arrays(size), size.get("generator")
    names = (
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "max_position_embeddings",
        *(("embedding_size", "hidden_act", "masked_lm_act") if replaced else ()),
    )
    config = load_config(
        None,
        overrides=[
            *(f"model.{name}={size[name]}" for name in names),
            f"training.batch_size={size['batch_size']}",
            f"training.precision={size['precision']}",
            f"options.max_seq_length={size['length']}",
            f"options.max_predictions_per_seq={arrays['masked_lm_ids'].shape[1]}",
            *(
                ["options.objective=replaced_tokens", f"options.generator_width={size['generator_width']}"]
                if replaced
                else []
            ),
        ],
    )
    distribution.set_precision(config.training.precision)
    task = load_task(config)
    trainer = Trainer(task.recipe(task.build_model()), make_strategy(Placement()), 1_000_000)
    batch = {name: tf.constant(value, tf.int32) for name, value in arrays.items()}
    batch |= {
        "masked_lm_weights": tf.ones(arrays["masked_lm_ids"].shape),
        "example_weights": tf.ones(size["batch_size"]),
    }
    if replaced:
        batch["sample_keys"] = tf.constant(
            np.random.default_rng(1).integers(0, 2**31, (size["batch_size"], 2)), tf.int32
        )
    iterator = iter(tf.data.Dataset.from_tensors(batch).repeat())
    return lambda: trainer.run_steps(iterator, tf.constant(1)).numpy()


def keras_hub(size: dict):
    """keras-hub's BertBackbone and MaskedLMHead, a Dense layer for the next sentence, and Keras' AdamW, in one
    tf.function.
    """
    import keras
    import keras_hub as library
    import tensorflow as tf

    if size["precision"] == "bfloat16":
        keras.config.set_dtype_policy("mixed_bfloat16")
    backbone = library.models.BertBackbone(
        vocabulary_size=size["vocab_size"],
        num_layers=size["num_hidden_layers"],
        num_heads=size["num_attention_heads"],
        hidden_dim=size["hidden_size"],
        intermediate_dim=size["intermediate_size"],
        max_sequence_length=size["max_position_embeddings"],
    )
    head = library.layers.MaskedLMHead(token_embedding=backbone.token_embedding, intermediate_activation="gelu")
    second = keras.layers.Dense(2, dtype="float32")
    optimizer = keras.optimizers.AdamW(RATE, weight_decay=DECAY, global_clipnorm=1.0)
    arrays = make_arrays(size)
    inputs = {
        "token_ids": arrays["input_ids"],
        "segment_ids": arrays["segment_ids"],
        "padding_mask": arrays["input_mask"],
    }
    inputs = {name: tf.constant(value, tf.int32) for name, value in inputs.items()}
    positions, words, labels = (
        tf.constant(arrays[name], tf.int32) for name in ("masked_lm_positions", "masked_lm_ids", "next_sentence_labels")
    )
    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    outputs = backbone(inputs)
    head(outputs["sequence_output"], mask_positions=positions)
    second(outputs["pooled_output"])
    weights = list(
        {id(weight): weight for part in (backbone, head, second) for weight in part.trainable_variables}.values()
    )
    optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    optimizer.build(weights)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            out = backbone(inputs, training=True)
            loss = cross_entropy(words, tf.cast(head(out["sequence_output"], mask_positions=positions), tf.float32))
            loss += cross_entropy(labels, second(tf.cast(out["pooled_output"], tf.float32)))
        optimizer.apply_gradients(zip(tape.gradient(loss, [weight.value for weight in weights]), weights))
        return loss

    return lambda: step().numpy()


def tf_models(size: dict):
    """tf-models-official's BertPretrainerV2 (tf-keras), with its AdamWeightDecay, in one tf.function."""
    import tensorflow as tf
    import tf_keras
    from official.nlp import optimization
    from official.nlp.modeling import layers, models, networks

    if size["precision"] == "bfloat16":
        tf_keras.mixed_precision.set_global_policy("mixed_bfloat16")
    encoder = networks.BertEncoderV2(
        vocab_size=size["vocab_size"],
        hidden_size=size["hidden_size"],
        num_layers=size["num_hidden_layers"],
        num_attention_heads=size["num_attention_heads"],
        inner_dim=size["intermediate_size"],
        max_sequence_length=size["max_position_embeddings"],
        inner_activation=lambda x: tf_keras.activations.gelu(x, approximate=True),
    )
    head = layers.ClassificationHead(inner_dim=size["hidden_size"], num_classes=2, name="next_sentence")
    model = models.BertPretrainerV2(encoder, classification_heads=[head], mlm_activation="gelu")
    optimizer = optimization.AdamWeightDecay(
        RATE,
        weight_decay_rate=DECAY,
        epsilon=1e-6,
        gradient_clip_norm=1.0,
        exclude_from_weight_decay=["LayerNorm", "layer_norm", "bias"],
    )
    arrays = make_arrays(size)
    inputs = {
        "input_word_ids": arrays["input_ids"],
        "input_type_ids": arrays["segment_ids"],
        "input_mask": arrays["input_mask"],
        "masked_lm_positions": arrays["masked_lm_positions"],
    }
    inputs = {name: tf.constant(value, tf.int32) for name, value in inputs.items()}
    words, labels = (tf.constant(arrays[name], tf.int32) for name in ("masked_lm_ids", "next_sentence_labels"))
    cross_entropy = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model(inputs)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            out = model(inputs, training=True)
            loss = cross_entropy(words, tf.cast(out["mlm_logits"], tf.float32))
            loss += cross_entropy(labels, tf.cast(out["next_sentence"], tf.float32))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    return lambda: step().numpy()


def pytorch(size: dict, compiled: bool = False):
    """Hugging Face's BertModel with its heads on the masked rows only, AdamW (fused where PyTorch has it), autocast for
    bfloat16.
    """
    import torch
    import transformers

    threads = len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    if size.get("generator"):
        return _in_pytorch(size, *_electra(size), compiled)
    config = transformers.BertConfig(
        **{
            name: size[name]
            for name in (
                "vocab_size",
                "hidden_size",
                "num_hidden_layers",
                "num_attention_heads",
                "intermediate_size",
                "max_position_embeddings",
            )
        },
        hidden_act="gelu_new",
    )
    model = transformers.BertForPreTraining(config).train()
    arrays = {name: torch.from_numpy(value) for name, value in make_arrays(size).items()}
    rows = torch.arange(size["batch_size"])[:, None]

    def losses():
        with torch.autocast("cpu", torch.bfloat16, enabled=size["precision"] == "bfloat16"):
            out = model.bert(
                arrays["input_ids"], attention_mask=arrays["input_mask"], token_type_ids=arrays["segment_ids"]
            )
            masked = out.last_hidden_state[rows, arrays["masked_lm_positions"]]
            words, second = model.cls(masked, out.pooler_output)
        replaced_logits = torch.nn.functional.cross_entropy(
            words.float().flatten(0, 1), arrays["masked_lm_ids"].flatten()
        )
        return replaced_logits + torch.nn.functional.cross_entropy(
            second.float(), arrays["next_sentence_labels"].flatten()
        )

    return _in_pytorch(size, model, losses, compiled)


def _in_pytorch(size: dict, model, losses, compiled: bool):
    """The step of a model in PyTorch whose loss `losses` computes."""
    import torch

    decayed = [
        weight for name, weight in model.named_parameters() if "LayerNorm" not in name and not name.endswith("bias")
    ]
    undecayed = [weight for name, weight in model.named_parameters() if "LayerNorm" in name or name.endswith("bias")]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": DECAY}, {"params": undecayed, "weight_decay": 0.0}],
        lr=RATE,
        eps=1e-6,
        fused=True,
    )
    run = torch.compile(losses) if compiled else losses

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = run()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return float(loss.detach())

    return step


def _electra(size: dict):
    """Hugging Face's discriminator and generator with one set of embeddings, and the losses of the authors'
    pre-training.
    """
    import torch
    import transformers

    shared = {
        "vocab_size": size["vocab_size"],
        "max_position_embeddings": size["max_position_embeddings"],
        "num_hidden_layers": size["num_hidden_layers"],
        "embedding_size": size["embedding_size"],
    }
    own = {name: size[name] for name in size["generator"]}
    discriminator = transformers.ElectraForPreTraining(transformers.ElectraConfig(**shared, **own))
    words = transformers.ElectraForMaskedLM(transformers.ElectraConfig(**shared, **size["generator"]))
    words.electra.embeddings = discriminator.electra.embeddings
    words.generator_lm_head.weight = discriminator.electra.embeddings.word_embeddings.weight
    arrays = {name: torch.from_numpy(value) for name, value in make_arrays(size).items()}
    rows = torch.arange(size["batch_size"])[:, None]
    places, ids = arrays["masked_lm_positions"], arrays["masked_lm_ids"]

    def losses():
        inputs = {"attention_mask": arrays["input_mask"], "token_type_ids": arrays["segment_ids"]}
        with torch.autocast("cpu", torch.bfloat16, enabled=size["precision"] == "bfloat16"):
            masked = words.electra(arrays["input_ids"], **inputs).last_hidden_state[rows, places]
            logits = words.generator_lm_head(words.generator_predictions(masked)).float()
        with torch.no_grad():
            guesses = (logits - torch.log(-torch.log(torch.rand_like(logits)))).argmax(-1)
        corrupted = arrays["input_ids"].index_put((rows.expand_as(places), places), guesses)
        replaced = torch.zeros_like(arrays["input_ids"]).index_put(
            (rows.expand_as(places), places), (guesses != ids).long()
        )
        with torch.autocast("cpu", torch.bfloat16, enabled=size["precision"] == "bfloat16"):
            replaced_logits = discriminator(corrupted, **inputs).logits.float()
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten()) + (
            50 * torch.nn.functional.binary_cross_entropy_with_logits(replaced_logits, replaced.float())
        )

    return torch.nn.ModuleList([discriminator, words]).train(), losses


def pytorch_compiled(size: dict):
    """The same with torch.compile."""
    return pytorch(size, compiled=True)


CONTENDERS = {function.__name__: function for function in (ours, keras_hub, tf_models, pytorch, pytorch_compiled)}
MODULES = {
    "ours": ("official_bert.training.trainer", "official_bert.tasks.pretraining.task"),
    "keras_hub": ("keras_hub",),
    "tf_models": ("official.nlp.optimization", "official.nlp.modeling.models"),
    "pytorch": ("torch", "transformers.models.bert.modeling_bert"),
    "pytorch_compiled": ("torch", "transformers.models.bert.modeling_bert"),
}  # imported before memory is counted


def resident(kind: str) -> int:
    """Returns VmRSS (current) or VmHWM (peak) of this process in bytes."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(kind))


def main(name: str, size: str) -> None:
    """Makes the step, then answers."""
    for module in MODULES[name]:
        importlib.import_module(module)
    imported = resident("VmRSS")
    step = CONTENDERS[name](json.loads(size))
    before, losses = resident("VmRSS"), []
    print("ready", flush=True)
    for line in sys.stdin:
        if not line.strip():
            break
        seconds = []
        for _ in range(int(line)):
            began = time.perf_counter()
            losses.append(float(np.ravel(step())[0]))
            seconds.append(time.perf_counter() - began)
        print(json.dumps(seconds), flush=True)
    peak = resident("VmHWM")
    print(
        json.dumps({"memory": peak - before, "whole": peak - imported, "finite": bool(np.isfinite(losses).all())}),
        flush=True,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
