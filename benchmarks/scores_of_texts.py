"""Scores of texts by a masked LM, beside minicons on PyTorch, batches by turns (`make venv-torch`).

    python benchmarks/scores_of_texts.py --layers=4 --hidden_size=256

Both read one folder of random weights, and hide each token and the later pieces of its word; the scores are compared.
minicons computes the rows of all texts of a call together: it gets as many texts at a time as is fastest for it.
"""

import json
import os
import subprocess
import tempfile
import time

import numpy as np
from absl import app, flags
from measured_commands import ROOT
from random_models import config_of, write_model

import official_bert
from official_bert.models.pretrainer import Pretrainer
from official_bert.text.vocab import SPECIAL_TOKENS

FLAGS = flags.FLAGS
flags.DEFINE_string("torch_python", str(ROOT / ".venv-torch/bin/python"), "Python with minicons.")
flags.DEFINE_integer("layers", 12, "Layers of the model.")
flags.DEFINE_integer("hidden_size", 768, "Its width, a multiple of 64.")
flags.DEFINE_integer("words", 30000, "Words of its vocabulary.")
flags.DEFINE_integer("texts", 16, "Texts of a batch, of 5 to 25 words.")
flags.DEFINE_integer("turns", 5, "Batches of each, after one that is not measured.")
# minicons 0.3.39 asks tokenizers for a method that transformers 5 has no more.
PEER_CODE = """
import json, sys, time
from minicons import scorer
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
tokenizer.batch_encode_plus = tokenizer.__call__
model = scorer.MaskedLMScorer(sys.argv[1], "cpu")
model.tokenizer = tokenizer
print("ready", flush=True)
for line in sys.stdin:
    at_once, texts = json.loads(line)
    began, scores = (time.perf_counter(), time.process_time()), []
    for start in range(0, len(texts), at_once):
        scores += model.sequence_score(texts[start : start + at_once], reduction=lambda x: x.sum(0).item(),
                                       PLL_metric="within_word_l2r")
    print(json.dumps([time.perf_counter() - began[0], time.process_time() - began[1], scores]), flush=True)
"""


def main(_):
    rng, folder = np.random.default_rng(0), os.path.join(tempfile.mkdtemp(), "bert")
    words = [f"w{number}" for number in range(FLAGS.words)]
    vocab = [*SPECIAL_TOKENS, *words, "##s"]
    config = config_of(len(vocab), FLAGS.layers, FLAGS.hidden_size)
    write_model(folder, Pretrainer.make(config), config, vocab, head="pretraining")
    ends = ("", "", "s")  # a third has two pieces
    batches = [
        [
            " ".join(f"{word}{rng.choice(ends)}" for word in rng.choice(words, rng.integers(5, 26)))
            for _ in range(FLAGS.texts)
        ]
        for _ in range(FLAGS.turns + 1)
    ]
    predictor, rows = official_bert.Predictor(folder), []
    with subprocess.Popen(
        [FLAGS.torch_python, "-c", PEER_CODE, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as peer:
        assert peer.stdin and peer.stdout

        def ask_peer(texts: list[str], at_once: int) -> list:
            peer.stdin.write(json.dumps([at_once, texts]) + "\n")
            peer.stdin.flush()
            return json.loads(peer.stdout.readline())

        while peer.stdout.readline() != "ready\n":
            pass
        at_once = min((1, 2, 4, 8), key=lambda number: min(ask_peer(batches[0], number)[0] for _ in range(2)))
        for texts in batches:
            began = time.perf_counter(), time.process_time()
            scores = [answer["score"] for answer in predictor.score(texts)]
            own = time.perf_counter() - began[0], time.process_time() - began[1]
            *peers, peer_scores = ask_peer(texts, at_once)
            difference = np.abs(np.subtract(scores, peer_scores)).max()
            rows.append((*own, *peers, difference))
            print(f"ours {own[0]:.2f} s, minicons {peers[0]:.2f} s, differ by {difference:.1e}", flush=True)
        peer.stdin.close()
    own, own_work, peers, peer_work, differences = np.array(rows[1:]).T
    print(
        f"least of {len(own)} batches of {FLAGS.texts} texts: ours {own.min():.3f} s, minicons {peers.min():.3f} s "
        f"({at_once} texts at once), {peers.min() / own.min():.2f} times as fast (by turns: {np.min(peers / own):.2f} "
        f"to {np.max(peers / own):.2f}); processor seconds {own_work.min():.3f} and {peer_work.min():.3f}; largest "
        f"difference {differences.max():.1e}"
    )


if __name__ == "__main__":
    app.run(main)
