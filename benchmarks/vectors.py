"""Vectors of texts with NomicBERT, beside sentence-transformers on PyTorch, batches by turns (`make venv-torch`).

    python benchmarks/vectors.py                                # NomicBERT's sizes, texts of 8 to 120 words
    python benchmarks/vectors.py --shortest=64 --longest=64     # without padding

Both read one folder of random weights and the same texts, and the vectors are compared. Both compute in float32, here
with as many threads as there are cores, PyTorch also with one thread, of which the faster counts: its threads wait
busily for each other, and take many times as long if others use the cores. PyTorch uses its fast attention (`sdpa`); a
line says so. Both pad the 32 texts to the longest. Products of rows leave the padding out here
(`layers/speed/real_tokens.py`), which is a part of the difference; with texts of one length there is none.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np
from absl import app, flags
from random_models import config_of, write_model

import official_bert
from official_bert.models.encoder import make_encoder
from official_bert.text.vocab import SPECIAL_TOKENS

FLAGS = flags.FLAGS
ROOT = pathlib.Path(__file__).parent.parent
flags.DEFINE_string("torch_python", str(ROOT / ".venv-torch/bin/python"), "Python with sentence-transformers.")
flags.DEFINE_integer("layers", 12, "Layers of the model.")
flags.DEFINE_integer("hidden_size", 768, "Its width, a multiple of 64.")
flags.DEFINE_integer("batch_size", 32, "Texts of a batch.")
flags.DEFINE_integer("shortest", 8, "Words of the shortest text.")
flags.DEFINE_integer("longest", 120, "Words of the longest text.")
flags.DEFINE_integer("turns", 7, "Batches of each, after two that are not measured.")
PROMPT = "search_document: "
PEER_CODE = """
import json, sys, time, torch
from sentence_transformers import SentenceTransformer
threads = int(sys.argv[3])
model = SentenceTransformer(sys.argv[1], device="cpu")
inner = model[0].auto_model
used = f"{inner.dtype}, attention {inner.config._attn_implementation}"
print(f"ready: torch {torch.__version__}, {type(inner).__name__}, {threads} threads or 1, {used}", flush=True)
for line in sys.stdin:
    texts, seconds = json.loads(line), []
    for number in {threads, 1}:
        torch.set_num_threads(number)
        began = time.perf_counter()
        vectors = model.encode(texts, prompt=sys.argv[2], batch_size=len(texts), show_progress_bar=False)
        seconds.append(time.perf_counter() - began)
    print(json.dumps([min(seconds), vectors.tolist()]), flush=True)
"""


def write_nomic(folder: str) -> list[str]:
    """Writes a NomicBERT of random weights with mean pooling and Normalize; returns its words."""
    words = [f"w{number}" for number in range(2000)]
    vocab = [*SPECIAL_TOKENS, *words, *"abcdefghijklmnopqrstuvwxyz:_", "search", "document"]
    config = config_of(
        len(vocab),
        FLAGS.layers,
        FLAGS.hidden_size,
        max_position_embeddings=2048,
        hidden_act="silu",
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        feed_forward="gated",
        unbiased="products",
        rotary=1000.0,
    )
    how = {"pooling": "mean", "normalize": True, "prompts": {"passage": PROMPT}, "longest_text": 2048}
    write_model(folder, make_encoder(config), config, vocab, **how)
    return words


def main(_):
    rng, folder = np.random.default_rng(0), os.path.join(tempfile.mkdtemp(), "nomic")
    words = write_nomic(folder)
    batches = [
        [" ".join(rng.choice(words, rng.integers(FLAGS.shortest, FLAGS.longest + 1))) for _ in range(FLAGS.batch_size)]
        for _ in range(FLAGS.turns + 2)
    ]
    predictor, rows, threads = official_bert.Predictor(folder), [], len(os.sched_getaffinity(0))
    with subprocess.Popen(
        [FLAGS.torch_python, "-c", PEER_CODE, folder, PROMPT, str(threads)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as peer:
        assert peer.stdin and peer.stdout
        while not (line := peer.stdout.readline()).startswith("ready"):
            assert line, "the other process ended"
        print(line.strip())
        for texts in batches:
            began = time.perf_counter()
            vectors = predictor.embed(texts, prompt="passage")
            seconds = time.perf_counter() - began
            peer.stdin.write(json.dumps(texts) + "\n")
            peer.stdin.flush()
            peer_seconds, peer_vectors = json.loads(peer.stdout.readline())
            difference = float(np.abs(np.array(vectors) - peer_vectors).max())
            rows.append((seconds, peer_seconds, difference))
            print(f"ours {seconds:.2f} s, sentence-transformers {peer_seconds:.2f} s, differ by {difference:.1e}")
        peer.stdin.close()
    ours_, peers, differences = np.array(rows[2:]).T
    print(
        f"medians of {len(ours_)} batches of {FLAGS.batch_size}: ours {np.median(ours_):.3f} s, sentence-transformers "
        f"{np.median(peers):.3f} s, {np.median(peers / ours_):.2f} times as fast (by turns: "
        f"{np.min(peers / ours_):.2f} to {np.max(peers / ours_):.2f}); largest difference {differences.max():.1e}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(app.run(main))
