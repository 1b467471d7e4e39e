"""Search on SQuAD: its questions find their paragraphs; stage by stage, and beside sentence-transformers with the same
data and steps.

    python benchmarks/search.py --squad='squad/*.json' --wikipedia='wiki/*' --model=MINILM --work_dir=/tmp/search
    python benchmarks/search.py --squad='squad/*.json' --model=MINILM --work_dir=/tmp/search --only=time

Articles are divided into train, development and test (70, 10, 20 %, by a hash of the title); `--part=dev` is for
trying. Two encoders, MODEL and a small BERT of our own, which the first command pre-trains on Wikipedia: as they are,
after in-batch negatives, with negatives mined by BM25, with a reranker over the first passages. `--peer` is a Python
with sentence-transformers (`make venv-torch`): it trains on the same pairs with the same batch, steps, rate and seeds;
the difference of nDCG@10 over questions has a paired bootstrap interval. The rankings of each model lie in
WORK_DIR/cells: a command that is started again goes on, and no model meets the test part twice. Prints a table and
writes WORK_DIR/results.json. `--only=time` trains MODEL by turns, the order swapped in every second one, and prints the
seconds of a step.
"""

import dataclasses
import glob
import hashlib
import json
import os
import subprocess
import sys

import numpy as np
from absl import app, flags

from official_bert.search import measures, neighbours
from official_bert.search.bm25 import nearest_by_words

FLAGS = flags.FLAGS
flags.DEFINE_string("squad", None, "Files of SQuAD.", required=True)
flags.DEFINE_string("model", None, "A folder of Hugging Face's form that both read.", required=True)
flags.DEFINE_string("work_dir", None, "Where all is written.", required=True)
flags.DEFINE_string("wikipedia", "", "Text to pre-train the small BERT on; empty: MODEL alone.")
flags.DEFINE_string("peer", ".venv-torch/bin/python", "A Python with sentence-transformers; empty: ours alone.")
flags.DEFINE_enum("part", "test", ["test", "dev"], "The part that is measured.")
flags.DEFINE_enum("only", "", ["", "time"], "time: the seconds of a step, by turns.")
flags.DEFINE_integer("questions", 1000, "Of the part that is measured; 0: all.")
flags.DEFINE_integer("steps", 60, "Of each training of MODEL.")
flags.DEFINE_float("learning_rate", 2e-5, "Of MODEL; warm-up a tenth, then linear to 0.")
flags.DEFINE_integer("small_steps", 300, "Of each training of the small BERT.")
flags.DEFINE_float("small_learning_rate", 5e-4, "Of the small BERT.")
flags.DEFINE_integer("pretraining_steps", 2000, "Of the small BERT, with 64 rows of 128 tokens.")
flags.DEFINE_integer("batch_size", 16, "Pairs in a batch, and in a group.")
flags.DEFINE_integer("seeds", 3, "Trainings of each kind.")
flags.DEFINE_integer("max_seq_length", 128, "Tokens of a text.")
flags.DEFINE_integer("rerank", 10, "Passages that the reranker reads; 0: no reranker.")
flags.DEFINE_integer("reranker_steps", 300, "Of each training of a reranker, which learns to compare from nothing.")
flags.DEFINE_float("reranker_learning_rate", 1e-4, "Of rerankers.")
flags.DEFINE_integer("turns", 4, "Of --only=time.")
TIMED_FROM, TIMED_TO = 10, 30  # steps
NAMES = ("ndcg_at_10", "mrr_at_10", "recall_at_10")

PEER_CODE = """
import json, sys, time, numpy as np, torch
from sentence_transformers import SentenceTransformer, InputExample, losses
from torch.utils.data import DataLoader
c = json.loads(sys.argv[1])
torch.manual_seed(c["seed"])
model = SentenceTransformer(c["model"]); model.max_seq_length = c["length"]
pairs = [line.rstrip("\\n").split("\\t") for line in open(c["train"], encoding="utf-8")][1:]
data = DataLoader([InputExample(texts=pair) for pair in pairs], shuffle=True, batch_size=c["batch"], drop_last=True,
                  generator=torch.Generator().manual_seed(c["seed"]), collate_fn=list)
loss_of = losses.MultipleNegativesRankingLoss(model, scale=20.0)
named = list(model.named_parameters())
groups = [{"params": [w for n, w in named if n.endswith(("bias", "LayerNorm.weight")) == last], "weight_decay": decay}
          for last, decay in ((False, 0.01), (True, 0.0))]
optimizer = torch.optim.AdamW(groups, lr=c["rate"], eps=1e-6)
warm = max(c["steps"] // 10, 1)
model.train(); done = 0; began = time.perf_counter()
while done < c["steps"]:
    for rows in data:
        if done >= c["steps"]: break
        if done == c["timed_from"]: began = time.perf_counter()
        features = [{k: v for k, v in model.tokenize([row.texts[side] for row in rows]).items()} for side in (0, 1)]
        for group in optimizer.param_groups:
            group["lr"] = c["rate"] * min((done + 1) / warm, (c["steps"] - done) / max(c["steps"] - warm, 1))
        loss_of(features, None).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0); optimizer.step()
        optimizer.zero_grad(set_to_none=True); done += 1
print("seconds", (time.perf_counter() - began) / (done - c["timed_from"]))
model.eval()
if c["out"]:
    texts = json.load(open(c["texts"], encoding="utf-8"))
    np.save(c["out"], np.concatenate([model.encode(texts[name], batch_size=64, normalize_embeddings=True)
                                      for name in ("queries", "passages")]))
"""


@dataclasses.dataclass(frozen=True)
class Encoder:
    """A model to start from, and how it is trained."""

    name: str
    path: str
    steps: int
    rate: float


def at(*names):
    """Returns a path in the work folder."""
    return os.path.join(FLAGS.work_dir, *names)


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
    return path


def run(*arguments):
    """Runs a command of ours; returns what it printed."""
    done = subprocess.run([sys.executable, *arguments], check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


class Measured:
    """The part that is measured: distinct questions, distinct paragraphs, and the answers."""

    def __init__(self, rows):
        self.passages = list(dict.fromkeys(passage for _, passage in rows))
        number_of = {text: number for number, text in enumerate(self.passages)}
        answers: dict[str, dict[int, int]] = {}
        for query, passage in rows:
            answers.setdefault(query, {})[number_of[passage]] = 1
        places = np.linspace(0, len(answers) - 1, min(FLAGS.questions or len(answers), len(answers))).astype(int)
        self.queries = [list(answers)[place] for place in places]
        self.relevant = [answers[query] for query in self.queries]
        with open(at("texts.json"), "w", encoding="utf-8") as file:
            json.dump({"queries": self.queries, "passages": self.passages}, file)

    def rankings(self, vectors):
        """Returns the ranking of each question, from the vectors of questions and paragraphs."""
        return neighbours.nearest(vectors[: len(self.queries)], vectors[len(self.queries) :], measures.DEPTH)[1]

    def of_words(self):
        """Ranks by BM25."""
        return nearest_by_words(self.queries, self.passages, measures.DEPTH)[1]

    def of_model(self, path):
        """Ranks by the vectors of one of our models."""
        from official_bert import Predictor

        model = Predictor(path, head="embeddings", max_seq_length=FLAGS.max_seq_length)
        return self.rankings(
            np.concatenate([model.embed(self.queries, "query"), model.embed(self.passages, "passage")])
        )

    def reranked(self, path, rankings):
        """Puts the first passages of each question into the order of a reranker."""
        from official_bert import Predictor

        model, new = Predictor(path), rankings.copy()
        for row, query in enumerate(self.queries):
            first = rankings[row, : FLAGS.rerank]
            new[row, : FLAGS.rerank] = [
                first[hit["index"]] for hit in model.rank(query, [self.passages[number] for number in first])
            ]
        return new

    def measure(self, rankings):
        """Returns nDCG@10, MRR@10 and recall@10 of each question, [Q,3]."""
        return np.array([[row[name] for name in NAMES] for row in measures.measure(rankings.tolist(), self.relevant)])


def tune(task, encoder, train, output, seed, *more, steps=None):
    """Fine-tunes; returns the seconds of a step without the first ones."""
    steps = steps or encoder.steps
    run(
        "-m",
        "official_bert.run_finetuning",
        f"--task={task}",
        f"--init_checkpoint={encoder.path}",
        f"--train_file={train}",
        "--nodo_eval",
        f"--output_dir={output}",
        f"--learning_rate={encoder.rate}",
        f"--set=seed={seed}",
        f"--set=training.steps={steps}",
        "--set=training.epochs=0.0",
        f"--set=training.batch_size={FLAGS.batch_size}",
        f"--set=training.log_every={TIMED_FROM}",
        "--set=optimizer.warmup_proportion=0.1",
        f"--set=options.max_seq_length={FLAGS.max_seq_length}",
        "--cache_dir=",
        "--set=optimizer.name=adamw_bias_corrected",
        *more,
    )
    with open(os.path.join(output, "log.jsonl"), encoding="utf-8") as file:
        rates = [
            row["train/sequences_per_second"] for row in map(json.loads, file) if "train/sequences_per_second" in row
        ]
    return FLAGS.batch_size * float(np.mean([1.0 / rate for rate in rates[1:] or rates]))


def tune_on_pairs(encoder, output, seed, **how):
    """Trains on in-batch negatives."""
    return tune(
        "retrieval", encoder, at("train.tsv"), output, seed, f"--set=options.group_size={FLAGS.batch_size}", **how
    )


def run_peer(encoder, seed, out, steps=None):
    """Does the same by sentence-transformers, and writes the vectors; returns the seconds of a step without the first
    ones.
    """
    values = {
        "model": encoder.path,
        "seed": seed,
        "train": at("train.tsv"),
        "batch": FLAGS.batch_size,
        "steps": steps or encoder.steps,
        "rate": encoder.rate,
        "length": FLAGS.max_seq_length,
        "texts": at("texts.json"),
        "out": out,
        "timed_from": TIMED_FROM,
    }
    done = subprocess.run(
        [FLAGS.peer, "-c", PEER_CODE, json.dumps(values)],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    return next(float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("seconds"))


def pretrain():
    """Pre-trains the small BERT; returns its folder in Hugging Face's form."""
    folder = at("small")
    if not os.path.exists(os.path.join(folder, "config.json")):
        vocab = os.path.join(FLAGS.model, "vocab.txt")
        run("tools/prepare_corpus.py", f"--input_file={FLAGS.wikipedia}", f"--output_file={at('corpus.txt')}")
        run(
            "tools/create_pretraining_data.py",
            f"--input_file={at('corpus.txt')}",
            f"--output_file={at('small.tfrecord')}",
            f"--vocab_file={vocab}",
            "--max_seq_length=128",
            "--max_predictions_per_seq=20",
            "--dupe_factor=1",
        )
        run(
            "-m",
            "official_bert.run_pretraining",
            "--config=configs/pretrain/tiny.yaml",
            f"--input_file={at('small.tfrecord')}",
            f"--vocab_file={vocab}",
            f"--output_dir={at('pretraining')}",
            f"--set=training.steps={FLAGS.pretraining_steps}",
            f"--set=optimizer.warmup_steps={FLAGS.pretraining_steps // 4}",
        )
        run(
            "tools/convert_checkpoint.py",
            "--from=ours",
            "--to=hugging_face",
            f"--input={at('pretraining')}",
            f"--output={folder}",
        )
    return folder


def cell(name, compute):
    """Returns the rankings of a model, [Q,K], which are computed once."""
    path = at("cells", f"{FLAGS.part} {name}.npy")
    if not os.path.exists(path):
        os.makedirs(at("cells"), exist_ok=True)
        np.save(path, compute())
        print(name, flush=True)
    return np.load(path)


def measure_encoder(encoder, measured):
    """Trains and ranks in all stages; returns the rankings by stage, one a seed."""

    def trained(stage, seed, tune_to):
        name = f"{encoder.name} {stage} {seed}"

        def compute():
            tune_to(at(name.replace(" ", "_")))
            return measured.of_model(at(name.replace(" ", "_")))

        return cell(name, compute)

    def by_peer(seed):
        out = at(f"{encoder.name}_peer_{seed}.npy")
        run_peer(encoder, seed, out)
        return measured.rankings(np.load(out))

    negatives = "--set=options.negative_columns=[negatives]"
    stages = {"as it is": [cell(f"{encoder.name} as it is", lambda: measured.of_model(encoder.path))]}
    for seed in range(FLAGS.seeds):
        stages.setdefault("in-batch negatives", []).append(
            trained("pairs", seed, lambda output, seed=seed: tune_on_pairs(encoder, output, seed))
        )
        if FLAGS.peer:
            stages.setdefault("the same by sentence-transformers", []).append(
                cell(f"{encoder.name} peer {seed}", lambda seed=seed: by_peer(seed))
            )
        stages.setdefault("mined negatives", []).append(
            trained(
                "mined",
                seed,
                lambda output, seed=seed: tune(
                    "retrieval",
                    encoder,
                    at("mined.jsonl"),
                    output,
                    seed,
                    f"--set=options.group_size={FLAGS.batch_size}",
                    negatives,
                ),
            )
        )
    if FLAGS.rerank:

        def rerank():
            comparing = dataclasses.replace(encoder, steps=FLAGS.reranker_steps, rate=FLAGS.reranker_learning_rate)
            tune(
                "reranking",
                comparing,
                at("mined.jsonl"),
                at(f"{encoder.name}_reranker"),
                0,
                negatives,
                f"--set=options.max_seq_length={FLAGS.max_seq_length + 32}",
            )
            return measured.reranked(at(f"{encoder.name}_reranker"), stages["mined negatives"][0])

        stages[f"mined negatives, the first {FLAGS.rerank} reranked"] = [cell(f"{encoder.name} reranked", rerank)]
    return stages


def bootstrap(differences, draws=2000):
    """Returns the mean difference over questions and its 95 % interval."""
    rng = np.random.default_rng(0)
    means = [differences[rng.integers(0, len(differences), len(differences))].mean() for _ in range(draws)]
    return [float(differences.mean()), *map(float, np.percentile(means, [2.5, 97.5]))]


def compare(name, stages, measures):
    """Prints the differences of nDCG@10 between stages, means over seeds, with their intervals; returns them."""
    of = {stage: np.mean([numbers[:, 0] for numbers in seeds], axis=0) for stage, seeds in measures.items()}
    of["the first seed of mined negatives"] = measures["mined negatives"][0][:, 0]
    pairs = [
        ("in-batch negatives", "as it is"),
        ("mined negatives", "in-batch negatives"),
        (next((stage for stage in stages if stage.endswith("reranked")), ""), "the first seed of mined negatives"),
        ("in-batch negatives", "the same by sentence-transformers"),
    ]
    compared = {f"{one} - {other}": bootstrap(of[one] - of[other]) for one, other in pairs if one in of and other in of}
    for pair, (mean, low, high) in compared.items():
        print(f"{name}: {pair}: {mean:+.4f} [{low:+.4f}, {high:+.4f}]")
    return compared


def measure_time(encoder):
    """Trains by turns, and prints the seconds of a step of both."""
    seconds = {"ours": [], "theirs": []}
    for turn in range(FLAGS.turns):
        for side in ("ours", "theirs") if turn % 2 == 0 else ("theirs", "ours"):
            took = (
                tune_on_pairs(encoder, at(f"time_{turn}"), turn, steps=TIMED_TO)
                if side == "ours"
                else run_peer(encoder, turn, "", steps=TIMED_TO)
            )
            seconds[side].append(took)
            print(f"turn {turn + 1}, {side}: {took:.3f} s a step", flush=True)
    ours, theirs = (float(np.median(seconds[side])) for side in ("ours", "theirs"))
    ratios = [other / one for one, other in zip(seconds["ours"], seconds["theirs"])]
    print(
        f"seconds of a step, medians: {ours:.3f} and {theirs:.3f}: {theirs / ours:.2f} times as fast (turns: "
        f"{min(ratios):.2f} to {max(ratios):.2f})"
    )


def main(_):
    """Runs all stages and prints their table."""
    os.makedirs(FLAGS.work_dir, exist_ok=True)
    parts = read_pairs()
    train = write_tsv(at("train.tsv"), parts["train"])
    model = Encoder(os.path.basename(os.path.normpath(FLAGS.model)), FLAGS.model, FLAGS.steps, FLAGS.learning_rate)
    if FLAGS.only == "time":
        measure_time(model)
        return
    measured = Measured(parts[FLAGS.part])
    print(
        {part: len(rows) for part, rows in parts.items()},
        f"{len(measured.queries)} questions search {len(measured.passages)} paragraphs",
    )
    if not os.path.exists(at("mined.jsonl")):
        run(
            "tools/mine_negatives.py",
            f"--train_file={train}",
            f"--output_file={at('mined.jsonl')}",
            "--negatives=1",
            "--last_rank=10",
        )
    small = [Encoder("small", pretrain(), FLAGS.small_steps, FLAGS.small_learning_rate)] if FLAGS.wikipedia else []
    rows, summary = ["| encoder | stage | nDCG@10 (seeds) | MRR@10 | recall@10 |\n|---|---|---|---|---|"], {}
    words = measured.measure(cell("BM25", measured.of_words)).mean(axis=0)
    rows.append("| none | BM25 | " + " | ".join(f"{value:.4f}" for value in words) + " |")
    for encoder in [model, *small]:
        stages = measure_encoder(encoder, measured)
        measures = {stage: [measured.measure(rankings) for rankings in seeds] for stage, seeds in stages.items()}
        summary[encoder.name] = {
            stage: [numbers.mean(axis=0).tolist() for numbers in seeds] for stage, seeds in measures.items()
        }
        for stage, seeds in summary[encoder.name].items():
            of_seeds = f" ({min(seeds)[0]:.4f} to {max(seeds)[0]:.4f})" if len(seeds) > 1 else ""
            ndcg, *others = np.mean(seeds, axis=0)
            rows.append(
                f"| {encoder.name} | {stage} | {ndcg:.4f}{of_seeds} | "
                + " | ".join(f"{value:.4f}" for value in others)
                + " |"
            )
        summary[f"{encoder.name}, differences"] = compare(encoder.name, stages, measures)
    print("\n".join(rows))
    with open(at("results.json"), "w", encoding="utf-8") as file:
        json.dump(summary, file, indent=1)


if __name__ == "__main__":
    app.run(main)
