"""Writes files and folders as strangers may send them, and runs the command that reads each, beside an ordinary one.

python tests/foreign_files.py runs all of them and prints a table: CPU seconds and memory beyond the ordinary file, and
how the command ends.
"""

import dataclasses
import json
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable

from forked import Forked

ROOT = pathlib.Path(__file__).parents[1]
FAMILY = ROOT / "tests/golden/family"
MOST_SECONDS, MOST_BYTES, PATIENCE = 2.0, 200 << 20, 300  # patience: by the clock, with what waits for ever
OPEN, PACKAGE = "http://schemas.openxmlformats.org", "application/vnd.openxmlformats-officedocument.spreadsheetml"
RELATIONS = (
    f'<Relationships xmlns="{OPEN}/package/2006/relationships"><Relationship Id="r1" '
    f'Type="{OPEN}/officeDocument/2006/relationships/'
)
PARTS = {
    "[Content_Types].xml": f'<Types xmlns="{OPEN}/package/2006/content-types"><Default Extension="rels" '
    'ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
    f'<Override PartName="/xl/workbook.xml" ContentType="{PACKAGE}.sheet.main+xml"/>'
    f'<Override PartName="/xl/worksheets/sheet1.xml" ContentType="{PACKAGE}.worksheet+xml"/></Types>',
    "_rels/.rels": f'{RELATIONS}officeDocument" Target="xl/workbook.xml"/></Relationships>',
    "xl/workbook.xml": f'<workbook xmlns="{OPEN}/spreadsheetml/2006/main" xmlns:r="{OPEN}/officeDocument/2006/'
    'relationships"><sheets><sheet name="s" sheetId="1" r:id="r1"/></sheets></workbook>',
    "xl/_rels/workbook.xml.rels": f'{RELATIONS}worksheet" Target="worksheets/sheet1.xml"/></Relationships>',
}
TEXTS = ["text,label", *(f"an ordinary text of number {number},{number % 2}" for number in range(50))]


def cells(*values):
    return "<row>" + "".join(f'<c t="inlineStr"><is><t>{value}</t></is></c>' for value in values) + "</row>"


ROWS = "".join(cells(*line.split(",")) for line in TEXTS)


def workbook(path, rows, parts=PARTS):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as book:
        for name, content in {**PARTS, **parts}.items():
            book.writestr(name, content)
        sheet = f'<worksheet xmlns="{OPEN}/spreadsheetml/2006/main"><sheetData>{rows}</sheetData></worksheet>'
        book.writestr("xl/worksheets/sheet1.xml", sheet)


def far_cells(path):
    workbook(path, "".join(f'<row r="{row}"><c r="XFD{row}"/></row>' for row in range(1, 20001)))


def shared_text(path):
    """Writes a workbook of 1,000 rows with one text of 5 MB: 5 GB, if each row had its own."""
    rows = "".join(f'<row><c t="s"><v>0</v></c><c><v>{row % 2}</v></c></row>' for row in range(1, 1001))
    text = "word " * 1_000_000
    parts = {
        "[Content_Types].xml": PARTS["[Content_Types].xml"].replace(
            "</Types>",
            f'<Override PartName="/xl/sharedStrings.xml" ContentType="{PACKAGE}.sharedStrings+xml"/></Types>',
        ),
        "xl/_rels/workbook.xml.rels": PARTS["xl/_rels/workbook.xml.rels"].replace(
            "</Relationships>",
            f'<Relationship Id="r2" Type="{OPEN}/officeDocument/2006/relationships/sharedStrings" '
            'Target="sharedStrings.xml"/></Relationships>',
        ),
        "xl/sharedStrings.xml": f'<sst xmlns="{OPEN}/spreadsheetml/2006/main"><si><t>text</t></si><si><t>label</t></si>'
        f"<si><t>{text}</t></si></sst>",
    }
    heads = '<row><c t="s"><v>0</v></c><c t="s"><v>1</v></c></row>'
    workbook(path, heads + rows.replace('t="s"><v>0', 't="s"><v>2'), parts)


def model(folder, name="bert", **changes):
    (source,) = list((FAMILY / name).iterdir())[:1]
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.npz"))
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | changes))


def adapter(**changes):
    def make(folder):
        import numpy as np
        from safetensors.numpy import save_file

        folder.mkdir()
        stem = "base_model.model.bert.encoder.layer.0.attention.self.query.lora_"
        width = json.loads((FAMILY / "bert/BertForPreTraining/config.json").read_text())["hidden_size"]
        tensors = {f"{stem}A.weight": np.ones((4, width), "float32"), f"{stem}B.weight": np.ones((width, 4), "float32")}
        save_file(tensors, folder / "adapter_model.safetensors")
        values = {
            "peft_type": "LORA",
            "task_type": "FEATURE_EXTRACTION",
            "r": 4,
            "lora_alpha": 8,
            "target_modules": ["query"],
        }
        (folder / "adapter_config.json").write_text(json.dumps(values | changes))

    return make


def tokenizer(**changes):
    def make(folder):
        model(folder)
        vocab = {token: place for place, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"])}
        values = {
            "added_tokens": [],
            "normalizer": None,
            "pre_tokenizer": None,
            "model": {"type": "WordPiece", "vocab": vocab},
        }
        (folder / "tokenizer.json").write_text(json.dumps(values | changes))

    return make


def with_pipe(name):
    def make(folder):
        model(folder)
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return make


def with_link(name, target):
    def make(folder):
        model(folder)
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target)

    return make


def run_folder(text):
    def make(folder):
        folder.mkdir()
        (folder / "config.yaml").write_text(text)

    return make


def text(content):
    return lambda path: path.write_bytes(content if isinstance(content, bytes) else content.encode())


def huge(path):
    path.write_text("{")
    os.truncate(path, 1 << 36)  # a sparse file: it takes no room


def tensors(*shapes):
    """Writes a model whose file of weights claims empty tensors of these shapes."""

    def make(folder):
        model(folder)
        about = {f"w{n}": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]} for n, shape in enumerate(shapes)}
        header = json.dumps(about).encode()
        (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)

    return make


def deep_keras(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("metadata.json", '{"keras_version": "3.0.0"}')
        archive.writestr("config.json", "[" * 1_000_000)
        archive.writestr("model.weights.h5", "")


@dataclasses.dataclass(frozen=True)
class Foreign:
    """A file or folder of a stranger, and one as people have, for the same command."""

    name: str
    make: Callable[[pathlib.Path], object]
    ordinary: Callable[[pathlib.Path], object]
    command: str  # of COMMANDS


COMMANDS = {
    "inspect": ["tools/inspect_data.py", "--task=classification", "--set=options.text_column=text", "{}"],
    "prepare": ["tools/prepare_corpus.py", "--input_file={}", "--output_file={}.out", "--num_workers=1"],
    "config": ["-m", "official_bert.run_pretraining", "--config={}", "--output_dir={}.out", "--input_file=none"],
    "run": ["tools/convert_checkpoint.py", "--input={}", "--to=ours", "--output={}.out"],
    "convert": ["tools/convert_checkpoint.py", "--input={}", "--to=ours", "--output={}.out"],
    "adapter": [
        "tools/convert_checkpoint.py",
        "--input={}",
        f"--base={FAMILY}/bert/BertForPreTraining",
        "--to=ours",
        "--output={}.out",
        "--merge_adapters",
    ],
}
CSV = text("\n".join(TEXTS) + "\n")
CONFIG = text("task: pretraining\ntraining:\n  steps: 3\n")
ARTICLE = text(
    '<doc id="1" url="x" title="A title">\nA title\n\nA sentence of an ordinary article, long enough.\n</doc>\n'
)
ALL = [
    Foreign("far_empty_cells.xlsx", far_cells, lambda path: workbook(path, ROWS), "inspect"),
    Foreign(
        "million_empty_rows.xlsx",
        lambda path: workbook(path, "<row/>" * 1_000_000),
        lambda path: workbook(path, ROWS),
        "inspect",
    ),
    Foreign(
        "one_far_row.xlsx",
        lambda path: workbook(path, '<row r="99999999999"><c r="A1"><v>1</v></c></row>'),
        lambda path: workbook(path, ROWS),
        "inspect",
    ),
    Foreign("shared_text.xlsx", shared_text, lambda path: workbook(path, ROWS), "inspect"),
    Foreign(
        "long_lines.csv",
        text(b"text,label\n" + b"".join(b"gr\xf6\xdfer " * 120_000 + b",%d\n" % (line % 2) for line in range(4))),
        text(b"text,label\n" + b"".join(b"gr\xf6\xdfer " * 12 + b",%d\n" % (line % 2) for line in range(40_000))),
        "inspect",
    ),
    Foreign("pipe.csv", os.mkfifo, CSV, "inspect"),
    Foreign("device.csv", lambda path: path.symlink_to("/dev/zero"), CSV, "inspect"),
    Foreign("title.xml", text('<doc id="1" url="x" ' + 'title="a' * 60_000 + "\n"), ARTICLE, "prepare"),
    Foreign("many_anchors.yaml", text("".join(f"k{key}: &a{key} 1\n" for key in range(9_000))), CONFIG, "config"),
    Foreign("many_keys.yaml", text("".join(f"k{key}: 1\n" for key in range(90_000))), CONFIG, "config"),
    Foreign("many_bytes.yaml", text(("# " + "x" * 97 + "\n") * 200_000), CONFIG, "config"),
    Foreign("long_number.yaml", text("training:\n  steps: 1" + ":1" * 300_000 + "\n"), CONFIG, "config"),
    Foreign("long_hexadecimal.yaml", text(f"task: 0x{'f' * 9000}\n"), CONFIG, "config"),
    Foreign("base_endless.yaml", text("base: /dev/zero\n"), CONFIG, "config"),
    Foreign("base_outside", run_folder("base: /etc/hostname\ntask: classification\n"), model, "run"),
    Foreign("base_of_devices", run_folder("base: [/dev/zero, /dev/zero]\n"), model, "run"),
    Foreign("pattern_slow", adapter(alpha_pattern={"(([a-z.0-9_]+)+)+!": 4}), adapter(), "adapter"),
    Foreign("pattern_wrong", adapter(alpha_pattern={"(": 4}), adapter(), "adapter"),
    Foreign("rank_zero", adapter(r=0), adapter(), "adapter"),
    Foreign("alpha_huge", adapter(lora_alpha=10**400), adapter(), "adapter"),
    Foreign("normalizer", tokenizer(normalizer=[]), model, "convert"),
    Foreign("pre_tokenizer", tokenizer(pre_tokenizer=3), model, "convert"),
    Foreign("model", tokenizer(model=[]), model, "convert"),
    Foreign("added", tokenizer(added_tokens=-1), model, "convert"),
    Foreign("huge_config", lambda folder: (model(folder), huge(folder / "config.json")), model, "convert"),
    Foreign("huge_words", lambda folder: (model(folder), huge(folder / "vocab.txt")), model, "convert"),
    Foreign("many_tensors", tensors(*([0] for _ in range(70_000))), model, "convert"),
    Foreign("many_dimensions", tensors([0] * 60), model, "convert"),
    Foreign("deep.keras", deep_keras, model, "convert"),
    *(
        Foreign(f"pipe_{name.replace('.', '_')}", with_pipe(name), model, "convert")
        for name in ("config.json", "vocab.txt", "model.safetensors", "pytorch_model.bin", "modules.json")
    ),
    Foreign("device_of_weights", with_link("model.safetensors", "/dev/zero"), model, "convert"),
    Foreign("device_of_words", with_link("vocab.txt", "/dev/zero"), model, "convert"),
]


def ended(forked: Forked, command: str, path: pathlib.Path) -> tuple[int, str, float, int]:
    """Runs a command; returns its status, its errors, CPU seconds and most bytes of memory."""
    words = [word.format(path) if "{}" in word else word for word in COMMANDS[command]]
    messages = path.parent / "messages.txt"
    watchdog = threading.Timer(PATIENCE, os.kill, (forked.start(words, ROOT, messages, PATIENCE), signal.SIGKILL))
    watchdog.start()
    status, seconds, memory = forked.wait()
    watchdog.cancel()
    return status, messages.read_text(), seconds, memory


def judged(case: Foreign, forked: Forked, folder: pathlib.Path, usual: dict) -> tuple[str, str]:
    """Runs a case; returns what was measured as a line, and what is wrong, "" if nothing is."""
    folder.mkdir(exist_ok=True)
    case.make(path := folder / case.name)
    key = (case.command, case.ordinary)
    if key not in usual:
        case.ordinary(plain := folder / f"ordinary_{case.name}")
        usual[key] = ended(forked, case.command, plain)[2:]
    status, errors, seconds, memory = ended(forked, case.command, path)
    more_seconds, more_memory = seconds - usual[key][0], memory - usual[key][1]
    lines = [line for line in errors.splitlines() if "error:" in line or "FATAL" in line]
    line = (
        f"{case.name}: status {status}, {more_seconds:+.1f} s, {more_memory / 2**20:+.0f} MB; {' '.join(lines)[:200]}"
    )
    wrong = [
        text
        for text, is_wrong in {
            "took too long": more_seconds > MOST_SECONDS or status < 0,
            "took too much memory": more_memory > MOST_BYTES,
            "a traceback": "Traceback" in errors,
            "does not end in one line that names it": status != 0 and not (len(lines) == 1 and case.name in lines[0]),
        }.items()
        if is_wrong
    ]
    return line, ", ".join(wrong)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place, Forked() as forked:
        usual: dict = {}
        for case in ALL:
            if len(sys.argv) < 2 or case.name in sys.argv[1:]:
                line, wrong = judged(case, forked, pathlib.Path(place), usual)
                print(f"{line}  WRONG: {wrong}" if wrong else line, flush=True)
