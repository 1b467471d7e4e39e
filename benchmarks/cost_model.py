"""Calculates what a pre-training step costs on machines that nobody measured here, and the days of 2018's schedule.

    python benchmarks/cost_model.py
    python benchmarks/cost_model.py --share=0.3

Everything here is a calculation from published figures of the chips. Arithmetic takes operations / (peak * --share);
the operations are those that `model FLOP/s` counts. A ring all-reduce of float32 gradients sends 2 (n - 1) / n times
their bytes from each chip; it is counted as if nothing of it ran beside the backward pass, the worst case. Input is
what the host sends to its chips.
"""

import dataclasses
import pathlib

from absl import app, flags
from pretraining_step import operations

from official_bert.config import ModelConfig, load_config

FLAGS = flags.FLAGS
flags.DEFINE_float(
    "share", 0.4, "Share of the peak that the step's arithmetic reaches.", lower_bound=0.01, upper_bound=1.0
)
ROWS = 256  # of a step; steps and lengths are those of the paper: 900,000 of 128 tokens, then 100,000 of 512
SCHEDULE = ((128, 900_000), (512, 100_000))
CONFIGS = pathlib.Path(__file__).parent.parent / "configs/model"


@dataclasses.dataclass(frozen=True)
class Machine:
    """Chips of one kind: peak operations a second in bfloat16, bytes a second that one sends to its neighbours, and
    from the host.
    """

    name: str
    chips: int
    peak: float
    link: float
    host: float


MACHINES = (
    Machine("8 A100 (312 TFLOP/s, NVLink 300 GB/s)", 8, 312e12, 300e9, 16e9),
    Machine("8 H100 (989 TFLOP/s, NVLink 450 GB/s)", 8, 989e12, 450e9, 32e9),
    Machine("64 TPU v3 chips (123 TFLOP/s, links of 70 GB/s)", 64, 123e12, 70e9, 8e9),
)


def operations_of(model: ModelConfig, length: int) -> float:
    """Returns the operations of a step of ROWS rows."""
    return operations({**vars(model), "batch_size": ROWS, "length": length})


def parameters(model: ModelConfig) -> int:
    """Returns the number of weights, with both pre-training heads."""
    width, inner = model.hidden_size, model.intermediate_size
    embeddings = (model.vocab_size + model.max_position_embeddings + model.type_vocab_size + 2) * width
    layer = 4 * (width + 1) * width + (width + 1) * inner + (inner + 1) * width + 4 * width
    heads = (width + 1) * width + 2 * width + model.vocab_size + 2 * (width + 1)
    return embeddings + model.num_hidden_layers * layer + (width + 1) * width + heads


def seconds_of_step(model: ModelConfig, machine: Machine, length: int) -> dict[str, float]:
    """Returns the seconds of arithmetic, of the all-reduce and of the input of one step of ROWS rows, spread over the
    chips.
    """
    exchanged = 2 * (machine.chips - 1) / machine.chips * 4 * parameters(model)
    # int32 and float32: ids, mask, segments; positions, words, weights
    features = 4 * (3 * length + 3 * (length * 15 // 100) + 2)
    return {
        "arithmetic": operations_of(model, length) / (machine.chips * machine.peak * FLAGS.share),
        "all-reduce": exchanged / machine.link,
        "input": ROWS / machine.chips * features / machine.host,
    }


def main(_) -> None:
    """Prints a table in Markdown."""
    print(
        "| model | machine | tokens a row | operations a step | all-reduce, bytes a chip | arithmetic, ms | "
        "all-reduce, ms | input, ms | days of 2018's schedule |\n" + "|---" * 9 + "|"
    )
    for name in ("base", "large"):
        model = load_config(str(CONFIGS / f"{name}.yaml")).model
        for machine in MACHINES:
            steps = {length: seconds_of_step(model, machine, length) for length, _ in SCHEDULE}
            days = (
                sum(count * (steps[length]["arithmetic"] + steps[length]["all-reduce"]) for length, count in SCHEDULE)
                / 86400
            )
            for length, parts in steps.items():
                exchanged = parts["all-reduce"] * machine.link
                print(
                    f"| {name}, {parameters(model) / 1e6:.1f} M | {machine.name} | {length} | "
                    f"{operations_of(model, length):.2e} | {exchanged / 1e6:,.0f} M | {parts['arithmetic'] * 1e3:.2f} "
                    f"| {parts['all-reduce'] * 1e3:.2f} | {parts['input'] * 1e3:.3f} | {days:.2f} |"
                )


if __name__ == "__main__":
    app.run(main)
