"""Every option of every task with values that nobody should give: at worst one line says what was wanted."""

import dataclasses
import json

import pytest
from commands import run_here
from made_finetuning import GLUE, SWAG, make_config

from official_bert.config import Config, build, merge, parse_override, save_config, to_dict
from official_bert.tasks.data import DataFiles, Steps
from official_bert.tasks.loading import load_task, task_class

VALUES = [
    "",
    "'",
    '"',
    "''",
    "\t",
    "\\t",
    "|",
    ";",
    " ",
    "#",
    "[]",
    "[a, b]",
    "[a, a]",
    "['']",
    "[1, -1]",
    "[[1], [2]]",
    "[1000000000]",
    "{a: 1}",
    "{}",
    "-1",
    "0",
    "1",
    "1.5",
    "1000000000",
    "99999999999999999999",
    ".nan",
    ".inf",
    "-.inf",
    "[.nan, .inf]",
    "1e400",
    "0x10",
    "true",
    "null",
    "text",
    "é",
    "a\nb",
    "a,b",
    "2026-01-01",
    "&a [*a]",
    "*a",
    "!!python/object/apply:os.getcwd []",
    "? a",
    "%a",
    "@",
    "`",
    "\x00",
    "\ud800",
]
TO_THE_END = [
    "'",
    "\t",
    "|",
    ";",
    "#",
    "[]",
    "[a, b]",
    "[1000000000]",
    "-1",
    "0",
    "1",
    "1.5",
    "1000000000",
    "true",
    "é",
]
WORDS = ("ferry", "violin", "atlas", "ledger", "clock", "hinges", "pilot", "keeper")
VARIANTS = [
    ("glue", {"dataset": "mrpc"}),
    ("classification", {}),
    ("swag", {}),
    ("squad", {"doc_stride": 8, "max_query_length": 8}),
    ("ner", {}),
    ("retrieval", {"group_size": 2}),
    ("reranking", {"negative_columns": ["other"]}),
    ("splade", {"group_size": 2}),
]
MORE = [
    ("classification", {"kind": "multi_label"}),
    ("classification", {"kind": "regression", "label_column": "score"}),
    ("ner", {"crf": True, "constrain": True, "document_context": True}),
    ("ner", {"features": "concat", "feature_layers": 1, "lstm_size": 8}),
]
every_variant = pytest.mark.parametrize(
    ("task", "options"),
    [
        pytest.param(
            task, options, marks=[pytest.mark.slow] if (task, options) in MORE else [], id=",".join([task, *options])
        )
        for task, options in VARIANTS + MORE
    ],
)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Returns the files of each task: to train on, to evaluate, to answer."""
    folder = tmp_path_factory.mktemp("hostile")
    found = {"glue": {"data_dir": f"{GLUE}/MRPC"}, "swag": {"data_dir": SWAG}}
    for part, first in (("train", "the"), ("dev", "her")):
        rows = [
            f"{first} {word},{word} {first},{'ab'[number % 2]},{number % 5},{number}"
            for number, word in enumerate(WORDS)
        ]
        (folder / f"{part}.csv").write_text("\n".join(["text,text_pair,label,score,other", *rows]) + "\n")
        (folder / f"{part}.conll").write_text(
            "-DOCSTART- O\n\n" + "".join(f"{first} O\n{word} B-PER\n\n" for word in WORDS)
        )
        questions = [
            {
                "context": f"{first} {word} of Anne",
                "qas": [
                    {
                        "id": f"{first}{word}",
                        "question": "who?",
                        "answers": [{"text": "Anne", "answer_start": len(f"{first} {word} of ")}],
                    }
                ],
            }
            for word in WORDS
        ]
        (folder / f"{part}.json").write_text(json.dumps({"data": [{"paragraphs": questions}]}))
    suffixes = {
        **dict.fromkeys(("classification", "retrieval", "splade", "reranking"), "csv"),
        "ner": "conll",
        "squad": "json",
    }
    for task, suffix in suffixes.items():
        train, dev = (str(folder / f"{part}.{suffix}") for part in ("train", "dev"))
        found[task] = {"train_file": train, "eval_file": dev} | ({"predict_file": dev} if task != "splade" else {})
    return found


def base_of(task, options):
    """Returns the values of a configuration without those that are the defaults, which would be read each time."""
    config = make_config(
        task,
        options={"max_seq_length": 32, **options},
        training={"batch_size": 4, "eval_batch_size": 4, "steps": 1, "epochs": 0.0},
    )
    base = changed(to_dict(config), to_dict(Config()))
    assert build(Config, base) == config
    return base


def changed(values, defaults):
    return {
        key: changed(value, defaults[key]) if isinstance(value, dict) and isinstance(defaults.get(key), dict) else value
        for key, value in values.items()
        if key not in defaults or value != defaults[key]
    }


def is_taken(base, files, task, field, value):
    """Whether a value passes configuration and, if it is one of `TO_THE_END`, data.

    A ValueError must have one line, and nothing else may be raised.
    """
    try:
        config = build(Config, merge(base, parse_override(f"options.{field}={value}")))
        one = load_task(config)
        if value not in TO_THE_END:
            return True
        resolved = one.data.resolve(DataFiles(**files[task]), Steps(predict=task != "splade"), model="any")
        if not config.options.get("features"):  # which the encoder computes
            resolved.train.batch(0)
    except ValueError as error:
        assert len(str(error).splitlines()) == 1 and len(str(error)) < 600, error
        return False
    return True


@every_variant
def test_values_that_cannot_be_are_refused_before_a_model_is_made(files, task, options):
    base, taken = base_of(task, options), 0
    for field in dataclasses.fields(task_class(task, "task").Options):
        for value in VALUES:
            taken += is_taken(base, files, task, field.name, value)
    assert taken > 5


@pytest.mark.slow
@every_variant
def test_values_that_are_taken_go_to_the_end_or_are_refused_in_one_line(files, tmp_path, task, options):
    base, ended = base_of(task, options), 0
    save_config(build(Config, base), str(tmp_path / "run.yaml"))
    given = [f"--{name}={path}" for name, path in files[task].items()]
    for field in dataclasses.fields(task_class(task, "task").Options):
        for number, value in enumerate(TO_THE_END):
            if not is_taken(base, files, task, field.name, value):
                continue
            run = tmp_path / f"{field.name}_{number}"
            done = run_here(
                "-m",
                "official_bert.run_finetuning",
                f"--config={tmp_path}/run.yaml",
                *given,
                f"--output_dir={run}",
                "--cache_dir=",
                *(["--do_predict"] if task != "splade" else []),
                f"--set=options.{field.name}={value}",
            )
            told = (field.name, value, done.stderr)
            assert done.returncode in (0, 1) and "Traceback" not in done.stderr, told
            assert done.returncode == 0 or [line for line in done.stderr.splitlines() if line.startswith("error: ")], (
                told
            )
            if done.returncode == 0:
                ended += 1
                done = run_here(
                    "-m",
                    "official_bert.run_export",
                    f"--checkpoint={run}",
                    f"--output={run}/model",
                    "--warmup_batch_sizes=1",
                )
                assert "Traceback" not in done.stderr, (field.name, value, done.stderr)
    assert ended > 2
