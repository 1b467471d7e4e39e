"""Compares our generator of pre-training data with tf-models-official's; measures its memory and the cost of a token.

    python benchmarks/data_generation.py --text='prepared/*.txt' --vocab_file=vocab.txt --work_dir=/big/disk

`--text` is prepared text (tools/prepare_corpus.py). If it is too short, copies with the words in another order are
added. The peer's time for the whole text is extrapolated from two small sizes, so that its start-up counts once.
"""

import glob
import json
import pathlib
import re
import shutil

from absl import app, flags
from measured_commands import ROOT, timed

FLAGS = flags.FLAGS
flags.DEFINE_string("text", None, "Prepared text: comma-separated globs.", required=True)
flags.DEFINE_string("vocab_file", None, "An uncased vocabulary.", required=True)
flags.DEFINE_string(
    "work_dir", "build/benchmark_data_generation", "A folder for the text and records of the measurement."
)
flags.DEFINE_integer("megabytes", 100, "Text of the comparison.")
flags.DEFINE_integer("large_megabytes", 400, "Text of the second measurement of memory; 0: none.")
flags.DEFINE_list("peer_megabytes", ["4", "8"], "Two sizes of the peer's runs.")
flags.DEFINE_integer("num_workers", 2, "Threads of our command.")
flags.DEFINE_bool("peer", True, "Run the peer.")

SETTINGS = ["--max_seq_length=128", "--max_predictions_per_seq=20", "--random_seed=12345"]
DUPES = 5


def make_text(files: list[str], path: pathlib.Path, megabytes: int) -> str:
    """Writes text of this size: the files, then copies of them with the words of each sentence rotated."""
    bytes_left, copy = megabytes * 1_000_000, 0
    with open(path, "w", encoding="utf-8") as out:
        while bytes_left > 0:
            for name in files:
                with open(name, encoding="utf-8") as file:
                    for line in file:
                        if copy and (words := line.split()):
                            turn = copy % len(words)
                            line = " ".join(words[turn:] + words[:turn]) + "\n"
                        out.write(line)
                        bytes_left -= len(line.encode())
                        if bytes_left <= 0 and line == "\n":
                            return str(path)
            copy += 1
    return str(path)


def run_ours(work: pathlib.Path, text: str, *flags_of_run: str, dupes: int = DUPES, cache: str = "") -> dict:
    """Runs our command; adds the seconds of its stages and the number of instances."""
    result = timed(
        str(ROOT / "tools" / "create_pretraining_data.py"),
        f"--input_file={text}",
        f"--output_file={work / 'ours.tfrecord'}",
        f"--vocab_file={FLAGS.vocab_file}",
        *SETTINGS,
        f"--dupe_factor={dupes}",
        f"--num_workers={FLAGS.num_workers}",
        *flags_of_run,
        cache=cache,
    )
    stages = {name: float(seconds) for name, seconds in re.findall(r"([a-z]+[a-z ]*): ([\d.]+) s\b", result["errors"])}
    counts = re.search(r"([\d,]+) tokens \(.*\) -> ([\d,]+) instances", result["output"]).groups()
    tokens, instances = (count.replace(",", "") for count in counts)
    size = sum(path.stat().st_size for path in work.glob("ours.tfrecord*"))
    return result | {"stages": stages, "tokens": int(tokens), "instances": int(instances), "bytes": size}


def run_peer(work: pathlib.Path, text: str) -> dict:
    """tf-models-official's command."""
    return timed(
        "-m",
        "official.nlp.data.create_pretraining_data",
        f"--input_file={text}",
        f"--output_file={work / 'peer.tfrecord'}",
        f"--vocab_file={FLAGS.vocab_file}",
        *SETTINGS,
        f"--dupe_factor={DUPES}",
        "--do_lower_case=True",
    )


def compare(work: pathlib.Path, files: list[str], text: str) -> dict:
    """Compares our whole command with the peer's; measures the rates of the stages after the tokenizer."""
    first = run_ours(work, make_text(files, work / "tiny.txt", 1), cache=str(work / "numba"))
    ours = min((run_ours(work, text) for _ in range(2)), key=lambda result: result["seconds"])
    figures = {
        f"{name} ({clock})": run[clock]
        for clock in ("seconds", "cpu_seconds")
        for name, run in (("first run ever, 1 MB, kernels compiled", first), (f"ours, {FLAGS.megabytes} MB", ours))
    } | {
        "instances": ours["instances"],
        "stages (s)": ours["stages"],
        "instances/s, sampled to written": ours["instances"]
        / sum(ours["stages"][name] for name in ("sampling", "writing")),
        "RssAnon at its peak (MB)": ours["memory"] / 1e6,
    }
    if FLAGS.peer:
        small, large = (float(size) for size in FLAGS.peer_megabytes)
        runs = [run_peer(work, make_text(files, work / "peer.txt", int(size))) for size in (small, large)]
        for clock in ("seconds", "cpu_seconds"):
            rate = (runs[1][clock] - runs[0][clock]) / (large - small)
            whole = runs[1][clock] + rate * (FLAGS.megabytes - large)
            figures |= {
                f"peer, small sizes ({clock})": [run[clock] for run in runs],
                f"peer, {FLAGS.megabytes} MB ({clock})": whole,
                f"times as fast ({clock})": whole / ours[clock],
            }
    return figures


def measure_memory(work: pathlib.Path, files: list[str], at_first: float) -> dict:
    """Measures the peak of anonymous memory for the large text, and for importing TensorFlow."""
    text = make_text(files, work / "large.txt", FLAGS.large_megabytes)
    large = run_ours(work, text)
    imported = timed("-c", "import tensorflow, time; time.sleep(0.5)")
    return {
        f"ours, {FLAGS.large_megabytes} MB (s)": large["seconds"],
        f"RssAnon at {FLAGS.large_megabytes} MB (MB)": large["memory"] / 1e6,
        "grown by": large["memory"] / 1e6 / at_first - 1,
        "RssAnon of importing TensorFlow (MB)": imported["memory"] / 1e6,
    }


def measure_costs(work: pathlib.Path, text: str) -> dict:
    """Measures seconds and bytes per token: once for tokenizing, and for each pass over the text."""
    store = f"--token_store={work / 'store'}"
    first = run_ours(work, text, store, dupes=1)
    more = run_ours(work, text, store, dupes=DUPES)
    tokens = first["tokens"]
    store_bytes = sum(path.stat().st_size for path in (work / "store").iterdir())
    sharded = run_ours(work, text, "--order=sharded", f"--output_file={work}/ours.tfrecord@8")

    def behind(run: dict) -> float:
        return run["stages"]["sampling"] + run["stages"]["writing"]

    return {
        "tokens": tokens,
        "tokenizing (ns/token)": first["stages"]["tokenizing"] / tokens * 1e9,
        "a pass (ns/token)": (behind(more) - behind(first)) / (DUPES - 1) / tokens * 1e9,
        "store (bytes/token)": store_bytes / tokens,
        "records (bytes/token and pass)": more["bytes"] / DUPES / tokens,
        "tokens an instance": DUPES * tokens / more["instances"],
        "sharded, 8 files (s)": sharded["seconds"],
    }


def main(_) -> None:
    """Measures and prints one JSON object."""
    work = pathlib.Path(FLAGS.work_dir)
    work.mkdir(parents=True, exist_ok=True)
    files = sorted(name for pattern in FLAGS.text.split(",") for name in glob.glob(pattern))
    try:
        text = make_text(files, work / "text.txt", FLAGS.megabytes)
        figures = compare(work, files, text)
        print(json.dumps(figures, indent=1), flush=True)
        print(json.dumps(measure_costs(work, text), indent=1), flush=True)
        if FLAGS.large_megabytes:
            print(json.dumps(measure_memory(work, files, figures["RssAnon at its peak (MB)"]), indent=1))
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    app.run(main)
