"""Writing with an encoder and a decoder beside transformers' `generate` on PyTorch: the same weights, by turns.

    python benchmarks/writing_words.py --layers=4 --hidden_size=256

A model with random weights is written as a folder of `EncoderDecoderModel`. Both sides write the same number of words
for each row, greedily and with four beams, for batches of 1 and 8 rows. The least times are compared, and whether the
words are the same.
"""

import json
import os
import subprocess
import tempfile
import time

import numpy as np
from absl import app, flags
from random_models import config_of

from official_bert.models.encoder import encoder_settings, weights_by_name
from official_bert.models.encoder_decoder.model import EncoderDecoder
from official_bert.models.first_weights import draw_first_weights
from official_bert.models.interchange import formats
from official_bert.models.interchange.names import NameTable
from official_bert.models.interchange.stored_models import StoredModel

FLAGS = flags.FLAGS
flags.DEFINE_string("peer", ".venv-torch/bin/python", "Python with PyTorch and transformers (make venv-torch).")
flags.DEFINE_integer("layers", 12, "Layers of encoder and decoder.")
flags.DEFINE_integer("hidden_size", 768, "Their width, a multiple of 64.")
flags.DEFINE_integer("vocabulary", 30522, "Words.")
flags.DEFINE_integer("length", 64, "Tokens of a source.")
flags.DEFINE_integer("words", 64, "Words that are written.")
flags.DEFINE_list("batches", ["1", "8"], "Rows of a batch.")
flags.DEFINE_list("beams", ["1", "4"], "Beams; 1 is greedy.")
flags.DEFINE_integer("turns", 5, "Turns, after one that is not measured.")


def write_model(folder: str) -> EncoderDecoder:
    """Writes a model with random weights, which are larger than BERT's first ones, and returns it."""
    config = config_of(
        FLAGS.vocabulary,
        FLAGS.layers,
        FLAGS.hidden_size,
        hidden_act="gelu_erf",
        initializer_range=1.0 / FLAGS.hidden_size**0.5,
    )
    search = {"eos_token_id": 3, "pad_token_id": 0, "decoder_start_token_id": 2}
    options = {"generator": "decoder", "decoder": encoder_settings(config), "shared": False, "head_transform": True}
    model = EncoderDecoder.make(config, {"decoder": encoder_settings(config), "search": search})
    draw_first_weights(model, 1)
    stored = StoredModel(
        origin="random weights",
        weights={name: np.array(weight) for name, weight in weights_by_name(model).items()},
        table=NameTable([]),
        config=config,
        head="decoder",
        objective_options={**options, "search": search},
    )
    formats.write(stored, "hugging_face", folder)
    return model


def main(_):
    with tempfile.TemporaryDirectory() as temporary:
        folder, file = os.path.join(temporary, "model"), os.path.join(temporary, "inputs.npz")
        model = write_model(folder)
        most = max(map(int, FLAGS.batches))
        ids = np.random.default_rng(0).integers(5, FLAGS.vocabulary, (most, FLAGS.length)).astype(np.int32)
        inputs = {"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": np.zeros_like(ids)}
        np.savez(file, **inputs)
        script = os.path.join(os.path.dirname(__file__), "generate_hugging_face.py")
        peer = subprocess.Popen(
            [FLAGS.peer, script, folder, file], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert peer.stdout.readline().strip() == "ready"
        for rows in map(int, FLAGS.batches):
            for beams in map(int, FLAGS.beams):
                compare(model, peer, inputs, rows, beams)
        peer.stdin.close()
        peer.wait()


def compare(model: EncoderDecoder, peer: subprocess.Popen, inputs: dict, rows: int, beams: int) -> None:
    """Prints the least times of both sides, and their ratio by turns."""
    how = {"num_beams": beams, "max_new_tokens": FLAGS.words, "min_new_tokens": FLAGS.words}
    batch, turns = {name: values[:rows] for name, values in inputs.items()}, []
    for _ in range(FLAGS.turns + 1):
        began = time.perf_counter(), time.process_time()
        ours = model.generate(batch, **how)["sequences"]
        took = time.perf_counter() - began[0], time.process_time() - began[1]
        peer.stdin.write(json.dumps({"rows": rows, **how}) + "\n")
        peer.stdin.flush()
        *theirs, sequences = json.loads(peer.stdout.readline())
        turns.append((*took, *theirs))
    seconds, work, their_seconds, their_work = np.array(turns[1:]).T
    same = np.array(sequences)[:, : ours.shape[1]].tolist() == ours.tolist()
    print(
        f"{rows} rows, {'greedy' if beams == 1 else f'{beams} beams'}, {FLAGS.words} words: {seconds.min():.3f} s, "
        f"transformers {their_seconds.min():.3f} s: {their_seconds.min() / seconds.min():.2f} times as fast (by turns "
        f"{np.min(their_seconds / seconds):.2f} to {np.max(their_seconds / seconds):.2f}); processor seconds "
        f"{work.min():.2f} and {their_work.min():.2f}; same words: {same}",
        flush=True,
    )


if __name__ == "__main__":
    app.run(main)
