"""Asks implementations of BERT the same questions and says which answers are those of the 2018 code.

    python benchmarks/conformance/judge.py --input_file='wiki/**' --vocab_file=vocab.txt --output_file=report.json
    python benchmarks/conformance/judge.py --only=tokie

The expected answers are recorded results of the 2018 code (tests/golden), those of docs/bert_in_one_file.py, or worked
out by hand; none is computed by official_bert. Each library answers in a process of its own environment through an
adapter (`adapters/NAME.py`), which uses public interfaces. What an adapter does not have, its library does not claim.
It prints a table, and for each failure the smallest case. A library that is not installed is named with the command
that installs it. --input_file adds tokens of 8,000 lines of any text.
"""

from official_bert.command_line import run_main

import importlib
import importlib.util
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags

from official_bert.storage.files import find_files, read_lines, written_whole

FLAGS = flags.FLAGS
flags.DEFINE_string("input_file", "", "Any text, for the tokens of its lines: files, folders, globs.")
flags.DEFINE_string("vocab_file", "", "An uncased vocabulary for --input_file.")
flags.DEFINE_integer("lines", 8000, "Lines of --input_file.", lower_bound=1)
flags.DEFINE_list("only", [], "Names of adapters; by default all.")
flags.DEFINE_string("output_file", "", "Where to write the report as JSON.")

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent.parent
GOLDEN = ROOT / "tests" / "golden"
BOUND = 1e-5  # of numbers: differences over the largest number of the array
COLUMNS = {
    "tokens uncased": "tokens, 1,694 rows",
    "tokens cased": "tokens, cased",
    "tokens text": "tokens, any text",
    "offsets": "offsets",
    "pairs": "pairs, truncation",
    "outputs": "outputs",
    "gradient": "gradient",
    "masked_lm": "masked LM",
    "next_sentence": "next sentence",
    "adamw": "AdamW of 2018",
    "instances": "instances of a seed",
    "squad": "SQuAD answers",
    "glue": "GLUE metrics",
}
NAMES = (
    "official_bert",
    "transformers",
    "keras_hub",
    "tf_models",
    "tokenizers",
    "tensorflow_text",
    "tokie",
    "flash_tokenizer",
)
LONGEST_CASE = 12  # characters of the parts of a text that are tried to find the smallest case


def main(_: list[str]) -> None:
    """Asks all libraries, prints the table and the smallest cases, and writes the report."""
    from expected import Expected

    report: dict[str, Any] = {"bound": BOUND, "libraries": {}}
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        expected = Expected(GOLDEN, ROOT / "docs" / "bert_in_one_file.py", *text_of(FLAGS))
        expected.write_questions(work)
        write_weights(work)
        for name in FLAGS.only or NAMES:
            report["libraries"][name] = judged(name, work, expected)
            print(f"{name}: {json.dumps(report['libraries'][name], ensure_ascii=False)[:400]}", file=sys.stderr)
    print("\n".join(table(report["libraries"])))
    if FLAGS.output_file:
        with written_whole(FLAGS.output_file) as file:
            file.write(json.dumps(report, indent=1, ensure_ascii=False) + "\n")


def text_of(values: Any) -> tuple[list[str], str]:
    """Returns the lines of --input_file, and the vocabulary for them."""
    lines: list[str] = []
    for path in find_files(values.input_file) if values.input_file else []:
        lines += [line for line in read_lines(path, on_bad_text="replace") if line.strip()]
    return lines[: values.lines], values.vocab_file or str(GOLDEN / "vocab_uncased.txt")


def write_weights(work: pathlib.Path) -> None:
    """Writes the golden checkpoint in the forms that the libraries read."""
    target = work / "weights" / "tf1"
    shutil.copytree(GOLDEN / "tf1_bert", target)
    shutil.copyfile(GOLDEN / "vocab_uncased.txt", target / "vocab.txt")
    for form in ("hugging_face", "keras_hub"):
        paths = [f"--input={target}", f"--output={work / 'weights' / form}"]
        command = [sys.executable, str(ROOT / "tools" / "convert_checkpoint.py"), "--from=tf1", f"--to={form}", *paths]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def ask(name: str, work: pathlib.Path) -> dict[str, Any]:
    """Returns the answers of a library, or why there are none."""
    adapter = importlib.import_module(f"adapters.{name}")
    python = ROOT / adapter.ENVIRONMENT / "bin" / "python"
    probe = f"import importlib.metadata as m; [m.version(name) for name in {adapter.PACKAGES!r}]"
    if not python.exists() or subprocess.run([python, "-c", probe], capture_output=True, check=False).returncode:
        return {"missing": f"{', '.join(adapter.PACKAGES)} is not installed: {adapter.INSTALL}"}
    done = subprocess.run([python, HERE / "answer.py", name, work], text=True, capture_output=True, check=False)
    if done.returncode:
        return {"missing": f"it ends with status {done.returncode}: {done.stderr[-300:]}"}
    return json.loads((work / "answers" / f"{name}.json").read_text(encoding="utf-8"))


def judged(name: str, work: pathlib.Path, expected: Any) -> dict[str, Any]:
    """Returns the result of each check of a library: passed or not, the figure, and the smallest case."""
    reply = ask(name, work)
    if "missing" in reply:
        return reply
    results = {}
    for check, answer in reply["answers"].items():
        if isinstance(answer, dict) and "error" in answer:
            results[check] = {"passed": False, "figure": "error", "case": answer["error"]}
        else:
            results[check] = expected.judge(check, answer)
        if check.startswith("tokens") and results[check]["passed"] is False and "texts" in results[check]:
            results[check] |= smallest(name, check.split()[1], results[check].pop("texts"), work, expected)
        results[check].pop("texts", None)
    return {"versions": reply["versions"], "results": results}


def smallest(name: str, kind: str, texts: Sequence[str], work: pathlib.Path, expected: Any) -> dict[str, Any]:
    """Asks a library about the parts of the shortest texts that differ; returns the shortest part that differs."""
    parts = {text[a:b] for text in texts for a in range(len(text)) for b in range(a + 1, a + 1 + LONGEST_CASE)}
    parts = sorted(parts | set(texts), key=lambda part: (len(part), part))
    with expected.asking(work, kind, parts):
        answer = ask(name, work)["answers"][f"tokens {kind}"]
        return {"case": expected.judge(f"tokens {kind}", answer)["case"]} if not isinstance(answer, dict) else {}


def table(libraries: Mapping[str, Any]) -> list[str]:
    """Returns a Markdown table, and a line for each failure."""
    lines = [f"| library | {' | '.join(COLUMNS.values())} |", "|---" * (len(COLUMNS) + 1) + "|"]
    cases = []
    for name, library in libraries.items():
        if "missing" in library:
            lines.append(f"| {name} | {library['missing']} |")
            continue
        title = ", ".join(f"{package} {version}" for package, version in library["versions"].items())
        cells = [cell(library["results"].get(check)) for check in COLUMNS]
        lines.append(f"| {title} | {' | '.join(cells)} |")
        failed = {check: row for check, row in library["results"].items() if not row["passed"]}
        cases += [f"- {title}, {COLUMNS[check]}: {row['case']}" for check, row in failed.items()]
    return [*lines, "", *cases]


def cell(result: Mapping[str, Any] | None) -> str:
    """Returns what the table says of a check."""
    if result is None:
        return "not claimed"
    return f"passes ({result['figure']})" if result["passed"] else f"**differs** ({result['figure']})"


if __name__ == "__main__":
    run_main(main)
