"""Search on SQuAD: its questions find their paragraphs; stage by stage, and beside sentence-transformers with the same data and steps.

    .venv/bin/python benchmarks/search.py --squad='squad/*.json' --model=MINILM --work_dir=/tmp/search --steps=300 --seeds=3

Articles are divided into train, development and test (70, 10, 20 %, by a hash of the title). The test part is measured once a model.
Stages: the model as it is; after in-batch negatives; after negatives mined by BM25; with a reranker over the first 20. `--peer` is a Python
with sentence-transformers (`make venv-torch`): it trains on the same pairs with the same batch, steps, rate and seeds; both take turns,
and the difference of nDCG@10 over questions has a paired bootstrap interval. Prints a table and writes WORK_DIR/results.json.
"""

import glob
import hashlib
import json
import os
import subprocess
import sys
import time

import numpy as np
from absl import app, flags

from official_bert.data.search import measures, neighbours

FLAGS = flags.FLAGS
flags.DEFINE_string("squad", None, "Files of SQuAD.", required=True)
flags.DEFINE_string("model", None, "A folder of Hugging Face's form that both read.", required=True)
flags.DEFINE_string("work_dir", None, "Where all is written.", required=True)
flags.DEFINE_string("peer", ".venv-torch/bin/python", "A Python with sentence-transformers; empty: ours alone.")
flags.DEFINE_integer("steps", 300, "Of each training.")
flags.DEFINE_integer("batch_size", 32, "Pairs in a batch, and in a group.")
flags.DEFINE_integer("seeds", 3, "Trainings of each kind.")
flags.DEFINE_integer("max_seq_length", 192, "Tokens of a text.")
flags.DEFINE_integer("rerank", 20, "Passages that the reranker reads; 0: no reranker.")
flags.DEFINE_float("learning_rate", 2e-5, "Of both; warm-up a tenth, then linear to 0.")

PEER_CODE = '''
import json, sys, time, numpy as np, torch
from sentence_transformers import SentenceTransformer, InputExample, losses
from torch.utils.data import DataLoader
c = json.loads(sys.argv[1])
torch.manual_seed(c["seed"])
model = SentenceTransformer(c["model"]); model.max_seq_length = c["length"]
if c["train"]:
    pairs = [line.rstrip("\\n").split("\\t") for line in open(c["train"], encoding="utf-8")][1:]
    data = DataLoader([InputExample(texts=pair) for pair in pairs], shuffle=True, batch_size=c["batch"], drop_last=True,
                      generator=torch.Generator().manual_seed(c["seed"]), collate_fn=list)
    loss_of = losses.MultipleNegativesRankingLoss(model, scale=20.0)
    named = list(model.named_parameters())
    groups = [{"params": [w for n, w in named if n.endswith(("bias", "LayerNorm.weight")) == last], "weight_decay": decay}
              for last, decay in ((False, 0.01), (True, 0.0))]
    optimizer = torch.optim.AdamW(groups, lr=c["rate"], eps=1e-6)
    warm = max(c["steps"] // 10, 1)
    model.train(); done = 0; began = None
    while done < c["steps"]:
        for rows in data:
            if done >= c["steps"]: break
            if done == 5: began = time.perf_counter()
            features = [{k: v for k, v in model.tokenize([row.texts[side] for row in rows]).items()} for side in (0, 1)]
            for group in optimizer.param_groups:
                group["lr"] = c["rate"] * min((done + 1) / warm, (c["steps"] - done) / max(c["steps"] - warm, 1))
            loss_of(features, None).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0); optimizer.step(); optimizer.zero_grad(set_to_none=True); done += 1
    print("seconds", (time.perf_counter() - began) / max(done - 5, 1))
model.eval()
np.save(c["out"], np.concatenate([model.encode(json.load(open(c["texts"]))[name], batch_size=64, normalize_embeddings=True)
                                  for name in ("queries", "passages")]))
'''


def read_pairs():
    """Returns questions with their paragraphs by part: train, dev, test."""
    parts = {"train": [], "dev": [], "test": []}
    for path in sorted(glob.glob(FLAGS.squad)):
        with open(path, encoding="utf-8") as file:
            for article in json.load(file)["data"]:
                share = int(hashlib.sha256(article["title"].encode()).hexdigest(), 16) % 100
                part = "train" if share < 70 else "dev" if share < 80 else "test"
                for paragraph in article["paragraphs"]:
                    context = " ".join(paragraph["context"].split())
                    parts[part] += [(" ".join(question["question"].split()), context) for question in paragraph["qas"]]
    return {part: list(dict.fromkeys(rows)) for part, rows in parts.items()}


def write_tsv(path, rows):
    """Writes pairs as retrieval reads them."""
    with open(path, "w", encoding="utf-8") as file:
        file.write("text\ttext_pair\n" + "".join(f"{first}\t{second}\n" for first, second in rows))


def run(*arguments):
    """Runs a command of ours; returns what it printed."""
    done = subprocess.run([sys.executable, *arguments], check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


class Test:
    """The test part: distinct questions, distinct paragraphs, and the answers."""

    def __init__(self, rows, path):
        self.queries, self.passages = (list(dict.fromkeys(texts)) for texts in zip(*rows))
        number_of = {text: number for number, text in enumerate(self.passages)}
        self.relevant = [{} for _ in self.queries]
        query_of = {text: number for number, text in enumerate(self.queries)}
        for query, passage in rows:
            self.relevant[query_of[query]][number_of[passage]] = 1
        self.path = path
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"queries": self.queries, "passages": self.passages}, file)

    def rankings(self, vectors):
        """Returns the ranking of each question, from the vectors of questions and paragraphs."""
        return neighbours.nearest(vectors[:len(self.queries)], vectors[len(self.queries):], measures.DEPTH)[1].tolist()

    def measure(self, rankings):
        """Returns nDCG@10, MRR@10 and recall@10 of each question, [Q,3]."""
        found = measures.measure(rankings, self.relevant)
        return np.array([[row[name] for name in ("ndcg_at_10", "mrr_at_10", "recall_at_10")] for row in found])

    def measure_model(self, path):
        """Measures one of our models; returns the numbers and the rankings."""
        from official_bert import Predictor
        model = Predictor(path, head="embeddings", max_seq_length=FLAGS.max_seq_length)
        vectors = np.concatenate([model.embed(self.queries, "query"), model.embed(self.passages, "passage")])
        rankings = self.rankings(vectors)
        return self.measure(rankings), rankings

    def rerank(self, path, rankings):
        """Measures a reranker over the first passages of each question."""
        from official_bert import Predictor
        model = Predictor(path)
        new = []
        for query, ranking in zip(self.queries, rankings):
            first = ranking[:FLAGS.rerank]
            new.append([first[one["index"]] for one in model.rank(query, [self.passages[number] for number in first])]
                       + ranking[FLAGS.rerank:])
        return self.measure(new)


def tune(task, train, output, seed, *more):
    """Fine-tunes; returns the seconds of a step."""
    began = time.perf_counter()
    run("-m", "official_bert.run_finetuning", f"--task={task}", f"--init_checkpoint={FLAGS.model}", f"--train_file={train}", "--nodo_eval",
        f"--output_dir={output}", f"--learning_rate={FLAGS.learning_rate}", f"--set=seed={seed}", f"--set=training.steps={FLAGS.steps}",
        "--set=training.epochs=0.0", f"--set=training.batch_size={FLAGS.batch_size}", "--set=training.log_every=10",
        "--set=optimizer.warmup_proportion=0.1", f"--set=options.max_seq_length={FLAGS.max_seq_length}", "--cache_dir=",
        "--set=optimizer.name=adamw_bias_corrected", *more)
    with open(os.path.join(output, "log.jsonl"), encoding="utf-8") as file:
        rates = [row["train/sequences_per_second"] for row in map(json.loads, file) if "train/sequences_per_second" in row]
    return FLAGS.batch_size / float(np.median(rates[1:] or rates)) if rates else (time.perf_counter() - began) / FLAGS.steps


def run_peer(train, seed, out):
    """Trains, if there are data, and encodes by sentence-transformers; returns the vectors and the seconds of a step."""
    values = {"model": FLAGS.model, "seed": seed, "train": train, "batch": FLAGS.batch_size, "steps": FLAGS.steps,
              "rate": FLAGS.learning_rate, "length": FLAGS.max_seq_length, "texts": os.path.join(FLAGS.work_dir, "test.json"), "out": out}
    done = subprocess.run([FLAGS.peer, "-c", PEER_CODE, json.dumps(values)], check=False, capture_output=True, text=True,
                          env=os.environ | {"HF_HUB_OFFLINE": "1"})
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    seconds = [float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("seconds")]
    return np.load(out), seconds[0] if seconds else float("nan")


def bootstrap(differences, draws=2000):
    """Returns the mean difference over questions and its 95 % interval."""
    rng = np.random.default_rng(0)
    means = [differences[rng.integers(0, len(differences), len(differences))].mean() for _ in range(draws)]
    return [float(differences.mean()), *map(float, np.percentile(means, [2.5, 97.5]))]


def main(_):
    """Runs all stages and prints their table."""
    os.makedirs(FLAGS.work_dir, exist_ok=True)
    at = lambda name: os.path.join(FLAGS.work_dir, name)  # noqa: E731
    parts = read_pairs()
    for part in ("train", "dev"):
        write_tsv(at(f"{part}.tsv"), parts[part])
    test = Test(parts["test"], at("test.json"))
    print({part: len(rows) for part, rows in parts.items()}, f"{len(test.queries)} questions search {len(test.passages)} paragraphs")
    results = {"as it is": [test.measure_model(FLAGS.model)[0]]}
    run("tools/mine_negatives.py", f"--train_file={at('train.tsv')}", f"--output_file={at('mined.jsonl')}", "--negatives=1",
        "--last_rank=10")
    times, theirs, ranked = {"ours": [], "theirs": []}, [], None
    group = f"--set=options.group_size={FLAGS.batch_size}"
    for seed in range(FLAGS.seeds):
        times["ours"].append(tune("retrieval", at("train.tsv"), at(f"pairs_{seed}"), seed, group))
        found, ranked = test.measure_model(at(f"pairs_{seed}"))
        results.setdefault("in-batch negatives", []).append(found)
        if FLAGS.peer:
            vectors, seconds = run_peer(at("train.tsv"), seed, at(f"theirs_{seed}.npy"))
            times["theirs"].append(seconds)
            theirs.append(test.measure(test.rankings(vectors)))
        tune("retrieval", at("mined.jsonl"), at(f"mined_{seed}"), seed, group, "--set=options.negative_columns=[negatives]")
        found, ranked = test.measure_model(at(f"mined_{seed}"))
        results.setdefault("with mined negatives", []).append(found)
    if FLAGS.rerank:
        tune("reranking", at("mined.jsonl"), at("reranker"), 0, "--set=options.negative_columns=[negatives]")
        results["mined, then a reranker"] = [test.rerank(at("reranker"), ranked)]
    if theirs:
        results["sentence-transformers, in-batch negatives"] = theirs
    print("| stage | nDCG@10 | MRR@10 | recall@10 |\n|---|---|---|---|\n" + "\n".join(
        f"| {name} | " + " | ".join(f"{value:.4f}" for value in np.mean([found.mean(axis=0) for found in all_seeds], axis=0)) + " |"
        for name, all_seeds in results.items()))
    summary = {name: [found.mean(axis=0).tolist() for found in all_seeds] for name, all_seeds in results.items()} | {"seconds": times}
    if theirs:
        ours, others = (np.mean([found[:, 0] for found in seeds], axis=0) for seeds in (results["in-batch negatives"], theirs))
        summary["difference"] = bootstrap(ours - others)
        print("ours - theirs, nDCG@10 [95 % interval]:", summary["difference"])
        print("seconds of a step, ours and theirs:", {name: float(np.median(values)) for name, values in times.items()})
    with open(at("results.json"), "w", encoding="utf-8") as file:
        json.dump(summary, file, indent=1)


if __name__ == "__main__":
    app.run(main)
