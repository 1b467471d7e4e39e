"""Writes the outputs of BERT's layers for each token of each line of a file (2018 `extract_features.py`).

    python -m official_bert.extract_features --input_file=lines.txt --output_file=features.jsonl --layers=-1,-2,-3,-4 \
        --vocab_file=uncased/vocab.txt --bert_config_file=uncased/bert_config.json
        --init_checkpoint=uncased/bert_model.ckpt

A line is a text, or two with ` ||| ` between them. --output_file=features.npz or .parquet writes these formats instead
of JSON lines. Vocabulary and model size are read from files beside the checkpoint, if they are there.
"""

from official_bert.command_line import run_main

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from absl import flags, logging
from tqdm import tqdm

from official_bert import flags_of_2018
from official_bert.config import Config, check_length, load_config
from official_bert.storage import files

if TYPE_CHECKING:
    from official_bert.models.encoder import BertEncoder
    from official_bert.text.tokenizer import Tokenizer

FLAGS = flags.FLAGS
flags.DEFINE_string("input_file", None, "Texts, one a line.", required=True)
flags.DEFINE_string("output_file", None, "JSON lines, or .npz or .parquet by the extension.", required=True)
flags.DEFINE_string("init_checkpoint", None, "A checkpoint of any format (docs/checkpoints.md).", required=True)
flags.DEFINE_string("layers", "-1,-2,-3,-4", "Layers: -1 is the last, 0 the first.")
flags.DEFINE_integer("batch_size", 32, "Lines in a batch, of about equal length.", lower_bound=1)
flags.DEFINE_string("bert_config_file", None, "The model's JSON, if it is not beside the checkpoint.")
flags.DEFINE_bool("use_tpu", False, f"{flags_of_2018.NO_MEANING}it runs on the first GPU, or the CPU.")
flags_of_2018.define_2018(["vocab_file", "do_lower_case", "max_seq_length"])
flags_of_2018.define_without_meaning(["master", "num_tpu_cores", "use_one_hot_embeddings"])
PAIR = re.compile(r"(.*) \|\|\| (.*)")
LINES_AT_ONCE = 2048  # sorted by length, computed, and written in their order


def main(_: list[str]) -> None:
    """Reads, computes and writes part by part."""
    from official_bert.long_work import preflight
    from official_bert.run_folder import RunFolder
    from official_bert.runs.checks import guards
    from official_bert.runs.configuration import run_config
    from official_bert.text import loading
    from official_bert.text.packing import check_segments

    config = load_config(
        None,
        bert_config_file=FLAGS.bert_config_file,
        flags=flags_of_2018.flags_by_key(FLAGS),
        checkpoint=run_config.checkpoint_values(FLAGS.init_checkpoint, vocab_file=FLAGS.vocab_file or ""),
    )
    run_config.require_vocabulary(config, FLAGS.init_checkpoint)
    guards.check_vocabulary(config, RunFolder(""), FLAGS.init_checkpoint)
    lines = read_texts(FLAGS.input_file)
    preflight.check_outputs([FLAGS.output_file], [FLAGS.input_file])
    layers = read_layers(FLAGS.layers, config.model.num_hidden_layers)
    check_length(length := config.options.get("max_seq_length", 128), config.model, "--max_seq_length", least=3)
    tokenizer = loading.load(config.tokenizer.vocab_file, config.tokenizer.do_lower_case)
    if any(PAIR.fullmatch(line) for line in lines):
        check_segments(config.model.type_vocab_size, f"--input_file={FLAGS.input_file}", tokenizer.second_segment)
    encoder = restore_encoder(config, FLAGS.init_checkpoint)
    cut = write_features(FLAGS.output_file, lines, tokenizer, length, encoder, layers, FLAGS.batch_size)
    print(f"{FLAGS.output_file}: {len(lines):,} lines, layers {FLAGS.layers}")
    if cut:
        logging.warning(
            "%s: %d of its lines are longer than --max_seq_length=%d tokens and were cut", FLAGS.input_file, cut, length
        )


def read_texts(path: str) -> list[str]:
    """Returns the lines of the input; raises ValueError if there are none, or if they are not UTF-8."""
    if not files.exists(path):
        raise ValueError(f"--input_file={path}: no such file")
    texts = [line.strip() for line in files.read_lines(path)]
    if not texts:
        raise ValueError(f"--input_file={path}: expected texts, the file is empty")
    return texts


def read_layers(text: str, count: int) -> list[int]:
    """Returns the numbers in --layers; raises ValueError for a layer that the encoder lacks, or one that is given
    twice.
    """
    try:
        layers = [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--layers={text}: expected numbers with commas between them") from None
    for layer in layers:
        if not -count <= layer < count:
            raise ValueError(f"--layers={text}: expected {-count} to {count - 1} for {count} layers, got {layer}")
    if len(set(layers)) < len(layers):
        raise ValueError(f"--layers={text}: expected each number once")
    return layers


def restore_encoder(config: Config, checkpoint: str) -> "BertEncoder":
    """Returns the encoder with the checkpoint's weights, with the outputs of all layers."""
    from official_bert.models import checkpoints
    from official_bert.models.encoder import BertEncoder, encoder_settings

    encoder = BertEncoder(**encoder_settings(config.model), return_layers=True, name="bert")
    encoder.build()
    print(f"initialized: {checkpoints.initialize_from(encoder, checkpoint).describe()}")
    return encoder


def write_features(
    path: str,
    lines: Sequence[str],
    tokenizer: "Tokenizer",
    length: int,
    encoder: "BertEncoder",
    layers: Sequence[int],
    batch_size: int,
) -> int:
    """Writes the outputs of some layers for each line, part by part; returns the number of lines that were cut to
    `length` tokens.
    """
    import tensorflow as tf

    from official_bert.data import layer_output_files

    run = tf.function(
        lambda batch: [encoder(batch, training=False)["layer_outputs"][layer] for layer in layers],
        reduce_retracing=True,
        autograph=False,
    )
    cut = 0
    with layer_output_files.open_writer(path, layers) as write:
        for start in tqdm(
            range(0, len(lines), LINES_AT_ONCE), desc="extracting", unit=f" x {LINES_AT_ONCE} lines", delay=1
        ):
            pairs = [
                pair.groups() if (pair := PAIR.fullmatch(line)) else (line, "")
                for line in lines[start : start + LINES_AT_ONCE]
            ]
            texts, text_pairs = zip(*pairs)
            rows = tokenizer.encode(texts, text_pairs, length)
            lengths = rows["input_mask"].sum(axis=1)
            cut += sum(tokens_of(tokenizer, pairs[row]) > length for row in np.flatnonzero(lengths == length))
            outputs = compute(run, rows, lengths, layers, batch_size)
            write(
                [
                    layer_output_files.SentenceOutputs(
                        start + row, tokenizer.convert_ids_to_tokens(ids[:count]), values
                    )
                    for row, (ids, count, values) in enumerate(zip(rows["input_ids"], lengths, outputs))
                ]
            )
    return cut


def tokens_of(tokenizer: "Tokenizer", texts: Iterable[str]) -> int:
    """Returns the number of tokens of a text or a pair, special ones included, before it is cut."""
    first, second = map(tokenizer.tokenize_ids, texts)
    return len(first) + len(second) + tokenizer.template.extra(bool(second))


def compute(
    run: Callable, rows: Mapping[str, np.ndarray], lengths: np.ndarray, layers: Sequence[int], batch_size: int
) -> list[dict[int, np.ndarray]]:
    """Returns {layer: float32 [tokens,D]} of each row of `rows` [B,S]; rows of similar length go through the encoder
    together.
    """
    import tensorflow as tf

    order = np.argsort(lengths, kind="stable")
    layers_of_rows: list[dict[int, np.ndarray]] = [{} for _ in order]
    for start in range(0, len(order), batch_size):
        numbers = order[start : start + batch_size]
        longest = lengths[numbers[-1]]
        outputs = [
            values.numpy()
            for values in run({name: tf.constant(values[numbers, :longest]) for name, values in rows.items()})
        ]
        for place, number in enumerate(numbers):
            layers_of_rows[number] = {layer: values[place, : lengths[number]] for layer, values in zip(layers, outputs)}
    return layers_of_rows


if __name__ == "__main__":
    run_main(main)
