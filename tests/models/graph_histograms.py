"""Records the operations of encoders' graphs and their first weights: most changes of code should change neither.

The files beside this script hold what was recorded. Whoever changes a graph or a weight on purpose records them again:

    PYTHONPATH=$PWD .venv/bin/python tests/models/graph_histograms.py --write

`--compare old.json` traces the functions again and prints which of them no longer hold the recorded operations.
"""

import argparse
import collections
import dataclasses
import json
import pathlib
from collections.abc import Callable, Iterable

import keras
import numpy as np
import tensorflow as tf

from official_bert.layers.speed.computing import computing
from official_bert.model_config import ModelConfig
from official_bert.models.encoder import weights_by_name
from official_bert.models.interchange import formats
from official_bert.models.pretrainer import Pretrainer
from official_bert.objectives import losses

HERE = pathlib.Path(__file__).parent
FAMILY = HERE.parent / "golden" / "family"
BERT_FILE = HERE / "graph_histograms.json"
RELATIVES_FILE = HERE / "graph_histograms_of_relatives.json"  # compared by hand only: their results may not change
WEIGHTS_FILE = HERE / "first_weights.json"

TINY = ModelConfig(hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=512)
SMALL = ModelConfig(hidden_size=512, num_hidden_layers=4, num_attention_heads=8, intermediate_size=2048)
LARGE_BATCH = (32, 128, 20)  # rows, tokens, predictions: pieces of the step are compiled (`fused.pays`)
SMALL_BATCH = (2, 32, 5)  # none is compiled
UNKNOWN = (None, None, None)
PACKED = ("instance_ids", "position_ids", "cls_positions")
CALLED = ("f", "body", "cond", "then_branch", "else_branch")  # attributes that name functions which an operation calls
Histogram = dict[str, int]


def relatives() -> dict[str, ModelConfig]:
    """Returns small configurations: of each member of the family (tests/golden/family), and of parts that none has."""
    plain = dataclasses.replace(TINY, vocab_size=97, hidden_size=32, intermediate_size=64, max_position_embeddings=40)
    members = {path.parent.parent.name: path.parent for path in sorted(FAMILY.glob("*/*/config.json"), reverse=True)}
    changes: dict[str, dict] = {
        "bilstm": {"bilstm_layers": 2},
        "gated": {"feed_forward": "gated"},
        "left_to_right": {"attention": "left_to_right"},
        "layer_groups": {"num_hidden_layers": 4, "layer_groups": 2},
        "long_rows": {"max_position_embeddings": 2048},
        "mean_pooling": {"pooling": "mean"},
        "no_biases": {"biases": False},
        "pre_norm": {"norm": "pre"},
    }
    parts = {name: dataclasses.replace(plain, **change) for name, change in changes.items()}
    return {name: formats.read(str(folder)).config for name, folder in sorted(members.items())} | parts


# Histograms of graphs


def input_specs(shape: tuple, names: Iterable[str] = ()) -> dict[str, tf.TensorSpec]:
    """Returns the specifications of an encoder's inputs, and of further ones that are named; shape: `LARGE_BATCH`."""
    rows, tokens, predictions = shape
    widths = dict.fromkeys(("cls_positions", "output_positions", "masked_lm_positions"), predictions)
    all_names = ("input_ids", "input_mask", "segment_ids", *names)
    return {name: tf.TensorSpec((rows, widths.get(name, tokens)), tf.int32) for name in all_names}


def trace_inference(model: Pretrainer, shape: tuple, names: Iterable[str] = ()) -> tf.Graph:
    """Returns the graph of the encoder's outputs."""

    def infer(inputs):
        return model.encoder(inputs, training=False)

    return tf.function(infer, autograph=False).get_concrete_function(input_specs(shape, names)).graph


def trace_step(model: Pretrainer, shape: tuple, names: Iterable[str] = ()) -> tf.Graph:
    """Returns the graph of the losses of pre-training, with dropout, and of their gradients by all weights."""

    def loss_of(logits):
        labels = tf.zeros(tf.shape(logits)[:-1], tf.int32)
        return losses.cross_entropy(logits, labels, tf.ones(tf.shape(labels)))[0]

    def step(inputs):
        with tf.GradientTape() as tape:
            outputs = model(inputs, training=True)
            loss = loss_of(outputs["mlm_logits"]) + loss_of(outputs["nsp_logits"])
        gradients = tape.gradient(loss, [weight.value for weight in model.trainable_variables])
        return loss, [gradient for gradient in gradients if gradient is not None]

    specs = input_specs(shape, ("masked_lm_positions", *names))
    return tf.function(step, autograph=False).get_concrete_function(specs).graph


def live_operations(graph: tf.Graph) -> Histogram:
    """Counts the operations on which the graph's results depend, by type; those of a called function at each call."""
    definition = graph.as_graph_def()
    functions = {function.signature.name: function for function in definition.library.function}
    counted: dict[str, collections.Counter] = {}

    def count(nodes, ends) -> collections.Counter:
        by_name, open_names, seen = {node.name: node for node in nodes}, list(ends), set()
        counts: collections.Counter = collections.Counter()
        while open_names:
            name = open_names.pop().removeprefix("^").partition(":")[0]
            if name in by_name and name not in seen:  # the arguments of a function are no nodes
                seen.add(name)
                counts[by_name[name].op] += 1
                open_names += by_name[name].input
                for attribute in CALLED:
                    if called := by_name[name].attr[attribute].func.name:
                        counts.update(count_function(called))
        return counts

    def count_function(name: str) -> collections.Counter:
        if name not in counted:
            function = functions[name]
            counted[name] = count(function.node_def, [*function.ret.values(), *function.control_ret.values()])
        return counted[name]

    ends = [tensor.op.name for tensor in graph.outputs] + [operation.name for operation in graph.control_outputs]
    return dict(sorted(count(definition.node, ends).items()))


def bert_histograms(sizes: Iterable[str] = ("tiny", "small")) -> dict[str, Histogram]:
    """Returns the histograms of BERT's graphs, by the name of the case; `tiny` has more of them."""
    found = {}
    for size in sizes:
        model = Pretrainer.make({"tiny": TINY, "small": SMALL}[size])
        histograms = usual_histograms(model) | unpadded_histograms(model)
        found |= {f"{size}: {name}": histogram for name, histogram in histograms.items()}
    more = training_histograms() if "tiny" in sizes else {}
    return found | {f"tiny: {name}": histogram for name, histogram in more.items()}


def usual_histograms(model: Pretrainer) -> dict[str, Histogram]:
    """Returns the histograms of the graphs that most users have."""
    graphs = {
        "step": trace_step(model, LARGE_BATCH),
        "step of a small batch": trace_step(model, SMALL_BATCH),
        "step of unknown length": trace_step(model, UNKNOWN),
        "step of packed rows": trace_step(model, LARGE_BATCH, PACKED),
        "inference": trace_inference(model, UNKNOWN),
        "inference at a known length": trace_inference(model, LARGE_BATCH),
        "pruned rows": trace_inference(model, UNKNOWN, ["output_positions"]),
        "packed rows": trace_inference(model, UNKNOWN, PACKED),
        "packed and pruned rows": trace_inference(model, UNKNOWN, ("output_positions", *PACKED)),
    }
    return {name: live_operations(graph) for name, graph in graphs.items()}


def unpadded_histograms(model: Pretrainer) -> dict[str, Histogram]:
    """Returns the histograms of graphs that compute no padding."""
    found = {}
    with computing(removes_padding=True):
        found["inference without padding"] = live_operations(trace_inference(model, UNKNOWN))
        found["pruned rows without padding"] = live_operations(trace_inference(model, UNKNOWN, ["output_positions"]))
        found["step without padding"] = live_operations(trace_step(model, UNKNOWN))
    with computing(removes_padding=True, compiles_every_length=True):
        found["step without padding, compiled for every length"] = live_operations(trace_step(model, UNKNOWN))
    return found


def training_histograms() -> dict[str, Histogram]:
    """Returns the histograms of steps of BERT tiny that are computed in other ways, and of its long rows."""
    models = {
        "with recomputed layers": Pretrainer.make(TINY, recompute=True),
        "with recomputed attention": Pretrainer.make(TINY, recompute="attention"),
        "in bfloat16": Pretrainer.make(TINY, dtype="mixed_bfloat16"),
    }
    long_rows = Pretrainer.make(dataclasses.replace(TINY, max_position_embeddings=2048))
    found = {f"step {way}": trace_step(model, LARGE_BATCH) for way, model in models.items()}
    found["step of long rows"] = trace_step(long_rows, (2, 2048, 20))
    found["inference of long rows"] = trace_inference(long_rows, UNKNOWN)
    return {name: live_operations(graph) for name, graph in found.items()}


def relatives_histograms() -> dict[str, Histogram]:
    """Returns the histograms of the graphs of relatives, by the name of the case."""
    found = {}
    for name, config in relatives().items():
        model = Pretrainer.make(config)
        packed = () if config.bilstm_layers else PACKED
        graphs = {
            "inference": trace_inference(model, UNKNOWN),
            "inference at a known length": trace_inference(model, SMALL_BATCH),
            "packed and pruned rows": trace_inference(model, UNKNOWN, ("output_positions", *packed)),
            "step": trace_step(model, SMALL_BATCH),
        }
        with computing(removes_padding=True):
            graphs["step without padding"] = trace_step(model, UNKNOWN)
        found |= {f"{name}: {case}": live_operations(graph) for case, graph in graphs.items()}
    return found


# First weights


def first_weights(config: ModelConfig) -> dict[str, list]:
    """Returns shape, dtype and fingerprint of each weight of a model under seed 1, in order; then its dropouts' seeds.

    The fingerprint is a sum of all values with changing factors. It is compared within rounding, which a hash does not
    allow: machines differ in the last bit of a normal distribution. The order of the seeds decides which dropout gets
    which masks in a training step.
    """
    keras.utils.set_random_seed(1)
    model = Pretrainer.make(config)
    found = {}
    for name, weight in weights_by_name(model).items():
        values = np.asarray(tf.convert_to_tensor(weight.value), "float64").reshape(-1)
        fingerprint = float(values @ np.cos(np.arange(values.size)))
        found[name] = [list(weight.shape), weight.dtype, float(f"{fingerprint:.7g}")]
    seeds = [variable for variable in model.variables if variable.path.endswith("seed_generator_state")]
    return found | {f"seed {number}": [[2], seed.dtype, int(seed.numpy()[0])] for number, seed in enumerate(seeds)}


def weight_configs() -> dict[str, ModelConfig]:
    """Returns the configurations whose first weights are recorded."""
    return {"bert_tiny": TINY} | relatives()


# The script


def differences(old: dict[str, Histogram], new: dict[str, Histogram]) -> list[str]:
    """Returns a line for each case whose operations changed: their number, and each type whose count is another one."""
    lines = []
    for case in sorted({*old, *new}):
        before, after = old.get(case), new.get(case)
        if before is None or after is None:
            lines.append(f"{case}: {'not recorded' if before is None else 'no longer traced'}")
        elif before != after:
            kinds = [
                f"{kind} {before.get(kind, 0)} -> {after.get(kind, 0)}"
                for kind in sorted({*before, *after})
                if before.get(kind, 0) != after.get(kind, 0)
            ]
            lines.append(f"{case}: {sum(before.values())} -> {sum(after.values())} operations: {', '.join(kinds)}")
    return lines


def write(path: pathlib.Path, values: dict[str, dict]) -> None:
    """Writes a line for each case, or for each entry of a case with lists: changes of versions then read well."""

    def line(value) -> str:
        if any(isinstance(entry, list) for entry in value.values()):
            return "{\n" + ",\n".join(f"  {json.dumps(key)}: {json.dumps(entry)}" for key, entry in value.items()) + "}"
        return json.dumps(value)

    lines = [f"{json.dumps(case)}: {line(value)}" for case, value in values.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    choice = parser.add_mutually_exclusive_group(required=True)
    choice.add_argument("--write", action="store_true", help="record everything again")
    choice.add_argument("--compare", metavar="OLD.JSON", help="compare with a recorded file of histograms")
    arguments = parser.parse_args()
    if arguments.write:
        write(BERT_FILE, bert_histograms())
        write(RELATIVES_FILE, relatives_histograms())
        write(WEIGHTS_FILE, {name: first_weights(config) for name, config in weight_configs().items()})
        return
    old = json.loads(pathlib.Path(arguments.compare).read_text())
    trace: Callable = bert_histograms if "tiny: step" in old else relatives_histograms
    new = trace()
    changed = differences(old, new)
    print(*changed, f"{len(new) - len(changed)} of {len(new)} graphs are equal", sep="\n")


if __name__ == "__main__":
    main()
