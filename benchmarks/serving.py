"""Compares a served classifier with Hugging Face's PyTorch and ONNX Runtime: latency and throughput on texts of mixed
length.

    make venv-torch minilm
    # the weights of a Hugging Face folder
    python benchmarks/serving.py --init_checkpoint=MODEL_FOLDER
    python benchmarks/serving.py --config=configs/model/base.yaml --vocab_file=vocab.txt     # random weights of a size
    # beside PyTorch's, and our float32
    python benchmarks/serving.py --init_checkpoint=MODEL_FOLDER --precision=bfloat16
    # as `serve --engine` computes it, too
    python benchmarks/serving.py --init_checkpoint=MODEL_FOLDER --engines=onnx,openvino,openvino_int8
    # what serve --engine=auto takes, beside PyTorch and ONNX Runtime; in float32, and of all precisions
    python benchmarks/serving.py --init_checkpoint=MODEL_FOLDER --engines=auto
    python benchmarks/serving.py --init_checkpoint=MODEL_FOLDER --engines=auto --most_loss=0.01

All sides have the same weights and head, go from raw texts to probabilities, with one thread per core. Texts are
sentences of 1 to 200 words (or the lines of --texts). Latency: single requests in the order of the texts; and one row
of 16 tokens, given as ids. Throughput: batches of 8 and 32 of all texts, sorted by length on every side. Unsorted: 32
texts as they come in one request, beside the same texts in four sorted requests of 8. The sides take turns in each
round, and another begins in each measurement of each round; figures are medians over rounds.
"""

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
from absl import app, flags

ROOT = pathlib.Path(__file__).parent.parent
FLAGS = flags.FLAGS
flags.DEFINE_string("init_checkpoint", "", "A Hugging Face folder.")
flags.DEFINE_string("config", "", "A model's YAML, for random weights.")
flags.DEFINE_string("vocab_file", "", "The vocabulary, with --config.")
flags.DEFINE_string("texts", "", "Texts, one per line; empty: random.")
flags.DEFINE_integer("count", 512, "Texts.")
flags.DEFINE_integer("singles", 200, "Requests of one text, and of 16 tokens.")
flags.DEFINE_integer("max_seq_length", 256, "Longest input, in tokens.")
flags.DEFINE_integer("rounds", 3, "Turns of each side.")
flags.DEFINE_enum(
    "precision",
    "float32",
    ["float32", "bfloat16"],
    "Of our export and of its peer.",
)
flags.DEFINE_integer("intra_op_threads", 0, "Threads of one of our operations; 0: one a core.", lower_bound=0)
flags.DEFINE_list(
    "engines",
    [],
    "Formats of other runtimes that compute our float32 model, such as onnx, "
    "openvino_int8; those of integers are calibrated on the texts. auto: the one of them that serve would take; alone, "
    "of onnx and openvino, with --most_loss in all precisions.",
)
flags.DEFINE_float("most_loss", None, "That of serve --engine=auto.", 0.0, 1.0)
flags.DEFINE_bool(
    "constant_weights",
    False,
    "Another of our sides: with run_export --constant_weights, or without them if they are the default.",
)
flags.DEFINE_bool("profile", False, "Instead, print the time shares of our operations by kind.")
flags.DEFINE_string(
    "torch_python", str(ROOT / ".venv-torch/bin/python"), "Python with PyTorch, transformers and ONNX Runtime."
)
BATCH_SIZES = (8, 32)
OURS = "official_bert"
SHORT, UNSORTED, SORTED = "16 tokens", "unsorted 32", "the same in sorted 8"
LARGEST_DIFFERENCE = {"float32": 1e-4, "bfloat16": 0.05, "int8": 0.2}  # between the probabilities of two sides
PEERS = {
    "float32": {"Hugging Face PyTorch": "pytorch", "ONNX Runtime": "onnx"},
    "bfloat16": {"PyTorch bfloat16": "pytorch-bfloat16"},
}
PEER = ROOT / "benchmarks" / "serve_peers.py"
WORDS = (
    "the",
    "a",
    "of",
    "river",
    "mountain",
    "paper",
    "engine",
    "teacher",
    "walked",
    "writes",
    "between",
    "never",
    "quickly",
    "bright",
    "and",
    "because",
    "window",
    "garden",
    "music",
    "winter",
    "unbelievable",
    "neighbourhood",
    "thermometer",
)


def make_texts() -> list[str]:
    """Returns texts of mixed lengths: most are short, some have 200 words."""
    if FLAGS.texts:
        with open(FLAGS.texts, encoding="utf-8") as file:
            return [line.strip() for line in file if line.strip()][: FLAGS.count]
    draw = random.Random(1)
    return [" ".join(draw.choices(WORDS, k=int(200 ** draw.random()))) for _ in range(FLAGS.count)]


def make_models(folder: str, texts: list[str]):
    """Writes the classifier in `folder`: our exports by precision, and a Hugging Face folder. Returns its configuration
    and that folder.
    """
    from official_bert.config import load_config
    from official_bert.models import checkpoints
    from official_bert.models.interchange import formats
    from official_bert.models.interchange.projects import ours
    from official_bert.models.interchange.stored_models import StoredModel
    from official_bert.runs.configuration import run_config
    from official_bert.serving import export
    from official_bert.serving.formats.checking import CheckTexts
    from official_bert.serving.formats.writing import JUDGED_BY_ANSWERS, FormatOptions
    from official_bert.serving.precision import policy_of
    from official_bert.serving.served_embeddings import make_served_model
    from official_bert.serving.served_model import ServingOptions
    from official_bert.tasks.loading import load_task

    overrides = ["task=classification", f"options.max_seq_length={FLAGS.max_seq_length}"]
    overrides += [f"tokenizer.vocab_file={FLAGS.vocab_file}"] if FLAGS.vocab_file else []
    config = load_config(
        FLAGS.config or None,
        overrides=overrides,
        defaults=run_config.DEFAULTS,
        checkpoint=run_config.checkpoint_values(FLAGS.init_checkpoint),
    )
    config = dataclasses.replace(config, options={**config.options, "labels": ["no", "yes"]})
    task = load_task(config)
    model = task.build_model()
    if FLAGS.init_checkpoint:
        checkpoints.initialize_from(model, FLAGS.init_checkpoint)
    rows = [{"text": text} for text in texts]
    engine_formats = [name for name in FLAGS.engines if name != "auto"]
    if FLAGS.engines == ["auto"]:
        engine_formats = ["onnx", "openvino"]
        if FLAGS.most_loss is not None:
            engine_formats += ["onnx_int8", "openvino_bfloat16", "openvino_int8"]
    judged = CheckTexts(rows, None, 1.0) if {*engine_formats} & {*JUDGED_BY_ANSWERS} else None
    for name in {"float32", FLAGS.precision, *(["other weights"] if FLAGS.constant_weights else [])}:
        precision = "float32" if name == "other weights" else name
        with policy_of(precision):
            second_model = task.build_model()
        second_model.set_weights(model.get_weights())
        served = make_served_model(task, second_model, ServingOptions())
        options = export.ExportOptions(
            output=os.path.join(folder, name),
            batch_sizes=(),
            precision=precision,
            formats=("saved_model", *(engine_formats if name == "float32" else ())),
            other_formats=FormatOptions(texts=judged if name == "float32" else None, calibration=rows),
        )
        if name == "other weights":
            options = dataclasses.replace(options, constant_weights=not export.has_constants(served, options))
        export.export(served, config, options)
        del served, second_model
    peer_folder = os.path.join(folder, "hugging_face")
    weights = {name: value.numpy() for name, value in ours.named_weights(model).items()}
    formats.write(
        StoredModel(
            origin="the benchmark",
            weights=weights,
            table=ours.TABLE,
            config=config.model,
            head="classifier",
            labels=["no", "yes"],
        ),
        "hugging_face",
        peer_folder,
    )
    write_tokenizer(config, peer_folder)
    return config.model, peer_folder


def write_tokenizer(config, folder: str) -> None:
    """Writes the files that the peers' tokenizer reads beside the vocabulary."""
    text = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": config.tokenizer.do_lower_case,
        "model_max_length": FLAGS.max_seq_length,
    }
    pathlib.Path(folder, "tokenizer_config.json").write_text(json.dumps(text), encoding="utf-8")
    pathlib.Path(folder, "vocab.txt").write_bytes(pathlib.Path(config.tokenizer.vocab_file).read_bytes())


def make_tokenizer(folder: str):
    """Returns the tokenizer, to count tokens."""
    from official_bert.text.tokenization import FullTokenizer

    return FullTokenizer(os.path.join(folder, "vocab.txt"))


def make_ours(folder: str, engine: str = ""):
    """Returns our SavedModels as a server loads them: batches of texts or rows of ids in, seconds and probabilities
    out.
    """
    import tensorflow_text  # noqa: F401

    from official_bert.server.models.engine_choice import choose_engine
    from official_bert.server.models.engine_servable import use_engine
    from official_bert.server.models.servable import Servable

    signatures = {}
    for form in ("text", "ids"):
        servable = Servable("model", 1, place := os.path.join(folder, form, "1"))
        if engine == "auto":
            lines = choose_engine(servable, place, FLAGS.intra_op_threads, FLAGS.most_loss)
            print(f"{form}: " + "\n".join(lines), file=sys.stderr)
        elif engine:
            use_engine(servable, place, engine, FLAGS.intra_op_threads)
        signatures[form] = servable.signature("")

    def ask(batches):
        seconds, probabilities = [], []
        for batch in batches:
            form = "ids" if isinstance(batch, dict) else "text"
            inputs = {name: np.array(rows, np.int32) for name, rows in batch.items()} if form == "ids" else {}
            began = time.perf_counter()
            inputs = inputs or {"text": np.array([text.encode() for text in batch], object)}
            probabilities += signatures[form].run(inputs)["probabilities"].tolist()
            seconds.append(time.perf_counter() - began)
        return {"seconds": seconds, "probabilities": probabilities}

    return ask


@contextlib.contextmanager
def make_peer(kind: str, folder: str):
    """Starts a peer in its own process."""
    process = subprocess.Popen(
        [FLAGS.torch_python, PEER, kind, folder, str(len(os.sched_getaffinity(0)))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        while (line := process.stdout.readline()) and line != "ready\n":
            pass
        if not line:
            sys.exit(f"error: {PEER.name} {kind} ended with status {process.wait()}")

        def ask(batches):
            process.stdin.write(json.dumps(batches) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield ask
    finally:
        process.stdin.close()
        process.wait()


def batches_of(texts: list[str], size: int) -> list[list[str]]:
    """Returns all texts in batches, the short ones first."""
    ordered = sorted(texts, key=len)
    return [ordered[start : start + size] for start in range(0, len(ordered), size)]


def make_work(texts: list[str]) -> dict[str, list]:
    """Returns the batches of each measurement by its name; fewer than 32 texts have no unsorted requests."""
    draw = random.Random(2)
    ids = [101, *(draw.randrange(1000, 25000) for _ in range(14)), 102]
    row = {"input_ids": [ids], "input_mask": [[1] * 16], "segment_ids": [[0] * 16]}
    mixed = [texts[start : start + 32] for start in range(0, len(texts) - 31, 32)]
    unsorted = {UNSORTED: mixed, SORTED: [batch for some in mixed for batch in batches_of(some, 8)]} if mixed else {}
    return {
        SHORT: [row] * FLAGS.singles,
        "one text": [[text] for text in texts[: FLAGS.singles]],
        **{f"batch {size}": batches_of(texts, size) for size in BATCH_SIZES},
        **unsorted,
    }


def measure(sides: dict, work: dict[str, list]) -> dict[str, dict[str, list[float]]]:
    """Returns figures by side and by measurement, one per round; ends the program if answers differ."""
    figures: dict[str, dict[str, list[float]]] = {name: {} for name in sides}
    for turn in range(-1, FLAGS.rounds):
        for place, (kind, batches) in enumerate(work.items()):
            answers = {}
            for name in rotated(list(sides), turn + 1 + place):
                answers[name] = sides[name](batches)
                if turn >= 0:  # the first is a warm-up
                    add(figures[name], kind, answers[name]["seconds"], len(answers[name]["probabilities"]))
            check(answers)
        print(f"round {turn + 1} of {FLAGS.rounds}", file=sys.stderr, flush=True)
    return figures


def rotated(names: list[str], turn: int) -> list[str]:
    """Returns the sides in the order of a turn: another begins in each, and every other turn goes backwards, because
    what ran before a side moves its times.
    """
    first = turn % len(names)
    return (names[first:] + names[:first])[:: -1 if turn % 2 else 1]


def add(figures: dict[str, list[float]], kind: str, seconds: list[float], count: int) -> None:
    """Adds the latencies of requests, and the rows per second of batches."""
    for share in (50, 99):
        figures.setdefault(f"{kind}: p{share} (ms)", []).append(float(np.percentile(seconds, share)) * 1000)
    if kind not in (SHORT, "one text"):
        figures.setdefault(f"{kind}: texts/s", []).append(count / sum(seconds))


def check(answers: dict) -> None:
    """Requires that all sides gave the same answers."""
    expected = np.array(answers[OURS]["probabilities"])
    for name, answer in answers.items():
        worst = float(np.abs(np.array(answer["probabilities"]) - expected).max())
        bound = max(
            (value for precision, value in LARGEST_DIFFERENCE.items() if precision in name),
            default=LARGEST_DIFFERENCE[FLAGS.precision],
        )
        if worst > bound:
            sys.exit(f"error: {name}: probabilities differ by {worst:.1e}, expected at most {bound}")


def gigaflops(model, token_counts: list[int]) -> float:
    """Returns the model's operations for texts with these numbers of tokens: products with weights, and attention."""
    width, layers = model.hidden_size, model.num_hidden_layers
    weights = layers * (4 * width**2 + 2 * width * model.intermediate_size)
    return sum(2 * count * weights + 4 * layers * count**2 * width for count in token_counts) / 1e9


def machine_limit() -> float:
    """Measures gigaflops per second of a large float32 matrix product on this machine."""
    import tensorflow as tf

    size, best = 4096, 0.0
    matrix = tf.random.normal([size, size])
    for _ in range(5):
        began = time.perf_counter()
        tf.matmul(matrix, matrix)[0, 0].numpy()
        best = max(best, 2 * size**3 / (time.perf_counter() - began) / 1e9)
    return best


def report(figures: dict[str, dict[str, list[float]]], operations: float, count: int) -> None:
    """Prints a table in Markdown, the ratios of throughput, and the share of the machine's limit. The first side is the
    compared one.
    """
    first, *peers = figures
    names = list(figures[first])
    print(f"| median of {FLAGS.rounds} rounds | {' | '.join(names)} |\n" + "|---" * (len(names) + 1) + "|")
    middle = {
        side: {name: statistics.median(series) for name, series in values.items()} for side, values in figures.items()
    }
    for side, values in middle.items():
        print(f"| {side} | {' | '.join(f'{values[name]:.1f}' for name in names)} |")
    for side, values in middle.items():
        short = middle[first][f"{SHORT}: p50 (ms)"] / values[f"{SHORT}: p50 (ms)"]
        print(
            f"\n{side}: 16 tokens: {first} takes {short:.2f} times its p50"
            + (
                f"; unsorted requests of 32 take {values[f'{SORTED}: texts/s'] / values[f'{UNSORTED}: texts/s']:.2f} "
                "times as long as the same texts in sorted batches of 8"
                if f"{SORTED}: texts/s" in values
                else ""
            )
        )
    limit = machine_limit()
    print(f"\na large matrix product: {limit:.0f} GFLOP/s")
    for size in BATCH_SIZES:
        rates = {side: values[f"batch {size}: texts/s"] for side, values in middle.items()}
        shares = ", ".join(f"{side} {rate * operations / count / limit:.0%}" for side, rate in rates.items())
        print(
            f"batch {size}: {first} has "
            + ", ".join(f"{rates[first] / rates[side]:.2f} times the texts/s of {side}" for side in peers)
            + f"; of that limit, for the tokens without padding: {shares}"
        )


def profile(ask, texts: list[str]) -> None:
    """Prints the share of time of each kind of our operations, for both batch sizes."""
    from operation_times import operation_times

    for size in BATCH_SIZES:
        batches = batches_of(texts, size)
        ask(batches)
        seconds = operation_times(functools.partial(ask, batches))
        total = sum(seconds.values())
        print(f"batch {size}: " + ", ".join(f"{kind} {value / total:.0%}" for kind, value in seconds.most_common(9)))


def main(_) -> None:
    """Makes the models, measures, prints."""
    if bool(FLAGS.init_checkpoint) == bool(FLAGS.config):
        sys.exit("error: expected --init_checkpoint or --config")
    if not os.path.exists(FLAGS.torch_python):
        sys.exit(f"error: --torch_python={FLAGS.torch_python}: not there; `make venv-torch` makes it")
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(FLAGS.intra_op_threads)
    texts = make_texts()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        model, peer_folder = make_models(folder, texts)
        if FLAGS.profile:
            profile(make_ours(os.path.join(folder, FLAGS.precision)), texts)
            return
        sides = {OURS: make_ours(os.path.join(folder, "float32"))}
        if FLAGS.precision != "float32":
            sides = {f"{OURS} {FLAGS.precision}": make_ours(os.path.join(folder, FLAGS.precision)), **sides}
        if FLAGS.constant_weights:
            sides[f"{OURS}, the other --constant_weights"] = make_ours(os.path.join(folder, "other weights"))
        for engine in FLAGS.engines:
            sides[f"{OURS} --engine={engine}"] = make_ours(os.path.join(folder, "float32"), engine)
        for name, kind in PEERS[FLAGS.precision].items():
            sides[name] = stack.enter_context(make_peer(kind, peer_folder))
        figures = measure(sides, make_work(texts))
        counts = [
            min(FLAGS.max_seq_length, len(tokens) + 2) for tokens in map(make_tokenizer(peer_folder).tokenize, texts)
        ]
    report(figures, gigaflops(model, counts), len(texts))


if __name__ == "__main__":
    app.run(main)
