import dataclasses
import json
import pathlib
from typing import Literal

import pytest
import yaml

from official_bert import config as configuration
from official_bert import flags_of_2018
from official_bert.config import (
    CheckpointValues,
    Config,
    Difference,
    ModelConfig,
    build,
    differences,
    load_config,
    may_change,
    merge,
    parse_override,
    save_config,
    to_dict,
)
from official_bert.run_folder import RunFolder
from official_bert.runs.checks import guards
from official_bert.runs.configuration import run_config


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_precedence_is_set_then_flag_then_yaml_then_base(tmp_path):
    write(
        tmp_path / "base.yaml",
        "seed: 1\nmodel: {hidden_size: 24, num_attention_heads: 2}\n"
        "training: {batch_size: 1, steps: 1}\noptimizer: {learning_rate: 0.1}\n",
    )
    path = write(
        tmp_path / "run.yaml", "base: base.yaml\nmodel: {hidden_size: 32}\ntraining: {batch_size: 2, steps: 2}\n"
    )
    found = load_config(
        path, flags={"training.batch_size": 3, "optimizer.learning_rate": 0.5}, overrides=["training.batch_size=4"]
    )
    assert (found.training.batch_size, found.training.steps, found.seed) == (4, 2, 1)
    assert (found.optimizer.learning_rate, found.model.hidden_size, found.model.num_attention_heads) == (0.5, 32, 2)


def test_several_bases_are_laid_over_each_other_in_order(tmp_path):
    write(tmp_path / "a.yaml", "seed: 1\nmodel: {num_hidden_layers: 1}\n")
    write(tmp_path / "b.yaml", "seed: 2\n")
    found = load_config(write(tmp_path / "run.yaml", "base: [a.yaml, b.yaml]\n"))
    assert (found.seed, found.model.num_hidden_layers) == (2, 1)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("model: {hidden_siz: 3}", "config.model: unknown keys ['hidden_siz']; did you mean model.hidden_size?"),
        ("learning_rate: 0.1", "config: unknown keys ['learning_rate']; did you mean optimizer.learning_rate?"),
        (
            "training: {learning_rat: 0.1}",
            "config.training: unknown keys ['learning_rat']; did you mean optimizer.learning_rate?",
        ),
        ("epoch: 3", "config: unknown keys ['epoch']; did you mean training.epochs"),
        ("zzz: 3", "config: unknown keys ['zzz']; known: ['model', "),
        ("max_seq_length: 3", "; those of the task stand there as options.max_seq_length"),
        ("optimizer: {learning_rate: 2e-5}", "config.optimizer.learning_rate: expected float, got '2e-5'"),
        ("training: {steps: yes}", "config.training.steps: expected int, got True"),
        ("training: {xla: 1}", "config.training.xla: expected bool, got 1"),
        ("training: {precision: half}", "expected one of ['float32', 'bfloat16', 'float16'], got 'half'"),
        ("model: {hidden_size: 30, num_attention_heads: 4}", "multiple of num_attention_heads (4), got 30"),
        ("model: {num_hidden_layers: -1}", "model.num_hidden_layers: expected at least 1, got -1"),
        ("seed: 1\nseed: 2", "run.yaml:2: duplicate key 'seed'"),
        ("model: [1]", "config.model: expected a mapping, got [1]"),
        ("base:\nseed: 1", "run.yaml: base: expected a path, or a list of paths, got None"),
        ("base: [3]", "run.yaml: base: expected a path, or a list of paths, got [3]"),
        ("seed: {{ seed }}", "run.yaml: not valid YAML: while constructing a mapping"),
        ("base: nowhere.yaml", "nowhere.yaml: no such configuration file, and none of this package"),
        ("base: run.yaml", "leads back to this file"),
        ("{", "run.yaml: not valid YAML"),
        ("seed: 1\noptions: {a: !!bool x}", "run.yaml:2: 'x' is no bool"),
        (
            "options:\n  labels: [a, 2001-01-01]",
            "or a mapping, got '2001-01-01' (YAML's timestamp; in quotes it is text)",
        ),
        ("phases: [{options: !!set {a}}]", "or a mapping, got YAML's set"),
        ("options: {a: 2001-99-99}", "got '2001-99-99' (YAML's timestamp; in quotes it is text)"),
        pytest.param("options: " + "[" * 1000, "run.yaml: not valid YAML: nested too deeply", id="deep"),
        ("options: &a {b: *a}", "run.yaml: not valid YAML: nested too deeply"),
    ],
)
def test_mistakes_are_named(tmp_path, text, told):
    with pytest.raises(ValueError) as error:
        load_config(write(tmp_path / "run.yaml", text))
    assert told in str(error.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [("a.b=1", 1), ("a.b=2e-5", 2e-5), ("a.b=true", True), ("a.b=x1", "x1"), ("a.b=[1, 2]", [1, 2]), ("a.b=", "")],
)
def test_an_override_is_a_dotted_key_and_a_yaml_value(text, value):
    assert configuration.parse_override(text) == {"a": {"b": value}}


@pytest.mark.parametrize("text", ["a.b", "=1", "a..b=1"])
def test_a_bad_override_is_refused(text):
    with pytest.raises(ValueError, match="expected key=value"):
        configuration.parse_override(text)


@pytest.mark.parametrize(
    "value",
    [
        "!!bool x",
        "!!int ''",
        "!!int x",
        "!!float ''",
        "!!timestamp x",
        "2001-99-99",
        "[2001-01-01]",
        "{a: !!set {b}}",
        "!!binary aGk=",
        "{2001-01-01: 1}",
        "!!map x",
        "{a: 1, a: 2}",
        "&a [*a]",
        "{a",
        pytest.param("9" * 5000, id="long"),
        pytest.param("[" * 1000, id="deep"),
    ],
)
@pytest.mark.parametrize("key", ["options.text_column", "phases"])
def test_an_override_that_is_no_value_of_a_configuration_is_one_line_with_its_key(key, value):
    with pytest.raises(ValueError) as error:
        parse_override(f"{key}={value}")
    assert str(error.value).startswith(f"--set {key}: {value[:60]!r} is not a YAML value")
    assert "\n" not in str(error.value) and len(str(error.value)) < 300


@pytest.mark.parametrize(
    ("override", "quoted"),
    [("task=2024", 'task="2024"'), ("task=no", 'task="no"'), ("training.freeze=1.5", 'training.freeze="1.5"')],
)
def test_a_number_or_a_bool_that_should_be_text_is_told_with_the_quotes_that_make_it_text(override, quoted):
    with pytest.raises(ValueError) as error:
        load_config(None, overrides=[override])
    assert str(error.value).endswith(f"(quotes make it text, as in '{quoted}')")
    key, _, value = quoted.partition("=")
    section, _, name = key.rpartition(".")
    assert parse_override(quoted) == ({section: {name: value[1:-1]}} if section else {name: value[1:-1]})
    with pytest.raises(
        ValueError,
        match=r"""config.labels\[1\]: expected str, got True \(quotes make it text, as in 'labels=\["yes"\]'""",
    ):
        build(Labelled, {"labels": ["a", True]})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Labelled:
    """Options with a list of texts."""

    labels: tuple[str, ...] = ()


def test_bert_config_json_gives_the_model(tmp_path, golden):
    found = load_config(bert_config_file=str(golden / "tf1_bert" / "bert_config.json"))
    assert (found.model.hidden_size, found.model.type_vocab_size, found.model.initializer_range) == (32, 16, 0.2)
    google = {"hidden_size": 768, "directionality": "bidi", "pooler_type": "first_token_transform"}
    path = write(tmp_path / "bert_config.json", json.dumps(google))
    assert load_config(bert_config_file=path).model == ModelConfig(type_vocab_size=16)


def test_saved_yaml_gives_the_same_config_again(tmp_path):
    saved = load_config(overrides=["options.labels=[a, b]", "optimizer.learning_rate=3e-5"])
    save_config(saved, str(tmp_path / "config.yaml"))
    assert load_config(str(tmp_path / "config.yaml")) == saved
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


def test_differences_name_the_keys():
    changed = merge(to_dict(Config()), {"training": {"steps": 9}})
    assert differences(to_dict(Config()), changed) == [Difference("training.steps", 0, 9)]
    assert Difference("training.steps", 0, 9).describe() == "training.steps: 0 -> 9"


def test_a_run_may_be_made_longer_but_not_another():
    assert all(
        may_change(key) for key in ("training.steps", "training.epochs", "training.eval_steps", "tokenizer.vocab_file")
    )
    assert not any(
        may_change(key)
        for key in (
            "training.batch_size",
            "training",
            "tokenizer.do_lower_case",
            "options.labels",
            "options",
            "model.hidden_size",
            "seed",
            "phases",
            "task",
            "training.unknown",
        )
    )


def test_every_2018_flag_leads_to_a_key():
    for flag, key in flags_of_2018.FLAG_KEYS.items():
        section, name = key.split(".")
        assert section == "options" or name in to_dict(Config())[section], flag


def test_every_config_in_the_repository_loads(root):
    from official_bert.tasks.loading import load_task

    paths = sorted((root / "configs").rglob("*.yaml"))
    assert paths
    for path in paths:
        found = load_config(str(path))
        if "model" not in path.parts:
            load_task(found)


def test_every_key_is_varied_or_read(root):
    """Every option is read: its name occurs in code outside config.py."""
    code = "\n".join(
        path.read_text(encoding="utf-8")
        for folder in ("official_bert", "tools")
        for path in (root / folder).rglob("*.py")
        if path.name != "config.py"
    )
    for section in ("model", "tokenizer", "optimizer", "training"):
        for key in to_dict(Config())[section]:
            assert key in code, f"{section}.{key} is read nowhere"


def test_yaml_floats_of_defaults_survive(tmp_path):
    text = yaml.safe_dump(to_dict(Config()))
    assert build(Config, yaml.safe_load(text)) == Config()


def test_what_a_checkpoint_tells_replaces_what_is_inherited_and_is_not_contradicted(tmp_path):
    (tmp_path / "base.yaml").write_text(
        "model: {hidden_size: 512, num_attention_heads: 8}\ntokenizer: {do_lower_case: true}\n"
    )
    (tmp_path / "run.yaml").write_text("base: base.yaml\nmodel: {hidden_dropout_prob: 0.3}\n")
    checkpoint = CheckpointValues(
        {
            "model": {"hidden_size": 96, "num_attention_heads": 8, "hidden_dropout_prob": 0.1},
            "tokenizer": {"do_lower_case": False},
        },
        "a checkpoint",
    )
    said = []
    config = load_config(
        str(tmp_path / "run.yaml"), checkpoint=checkpoint, report=said.append, defaults={"model": {"hidden_size": 32}}
    )
    assert (config.model.hidden_size, config.model.hidden_dropout_prob, config.tokenizer.do_lower_case) == (
        96,
        0.3,
        False,
    )
    assert said == [
        f"a checkpoint: its values instead of those of base: in {tmp_path}/run.yaml: model.hidden_size 96 instead of "
        "512, tokenizer.do_lower_case False instead of True"
    ]
    for more in ({"overrides": ["model.hidden_size=512"]}, {"flags": {"model.hidden_size": 512}}):
        with pytest.raises(ValueError, match="a checkpoint: config.model.hidden_size is 96 there, got 512"):
            load_config(str(tmp_path / "run.yaml"), checkpoint=checkpoint, **more)
    with pytest.raises(ValueError, match="config.tokenizer.do_lower_case is False there, got True"):
        load_config(None, checkpoint=checkpoint, flags={"tokenizer.do_lower_case": True})
    with pytest.raises(
        ValueError, match="config.model.hidden_size is 96 there, got 512; config.model.num_attention_heads"
    ):
        load_config(
            str(tmp_path / "base.yaml"),
            checkpoint=CheckpointValues({"model": {"hidden_size": 96, "num_attention_heads": 4}}, "a checkpoint"),
        )
    assert load_config(None, checkpoint=checkpoint, overrides=["model.hidden_size=96"]).model.hidden_size == 96


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("|", "|"),
        (";", ";"),
        ("#", "#"),
        ("~", "~"),
        ("-", "-"),
        (":", ":"),
        ("\t", "\t"),
        ("", ""),
        (r"\t", r"\t"),
        ("[]", []),
        ("'|'", "|"),
        ("2e-5", 2e-5),
        ("a|b", "a|b"),
        ("-1", -1),
    ],
)
def test_punctuation_is_text_as_it_stands(text, value):
    assert parse_override(f"options.delimiter={text}") == {"options": {"delimiter": value}}


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("training.batch_size=0", "config.training.batch_size: expected at least 1, got 0"),
        ("training.log_every=0", "log_every: expected"),
        ("training.epochs=-1", "epochs: expected at least 0"),
        ("training.epochs=.nan", "epochs: expected at least 0"),
        ("optimizer.clip_norm=-1", "config.optimizer.clip_norm: expected at least 0"),
        ("optimizer.learning_rate=-0.1", "learning_rate: expected at least 0"),
        ("optimizer.beta_2=1.0", "beta_2: expected a factor from 0"),
        ("optimizer={name: lamb, beta_1: 0.0}", "beta_1: expected a factor from 0"),
        (
            "optimizer.power=2",
            "config.optimizer.power: expected optimizer.schedule: polynomial \\(not linear\\) with it, got 2.0 without",
        ),
        (
            "optimizer={schedule: constant, end_learning_rate: 0.1}",
            "optimizer.schedule: linear or polynomial or warmup_stable_decay \\(not constant\\) with it, got 0.1",
        ),
        ("optimizer.warmup_proportion=10", "warmup_proportion: expected a share from 0 to 1, got 10"),
        ("seed=-1", "config.seed: expected a number from 0"),
        ("model.hidden_dropout_prob=1.0", "model.hidden_dropout_prob: expected a rate"),
    ],
)
def test_numbers_that_cannot_be_are_refused(override, told):
    with pytest.raises(ValueError, match=told):
        load_config(None, overrides=[override])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Weighted:
    """Options of several kinds."""

    weights: Literal["", "balanced"] | tuple[float, ...] | dict[str, float] = ""
    threshold: float | Literal["tuned"] = 0.5


def test_a_value_of_several_kinds_is_read_as_the_first_that_fits():
    assert [
        build(Weighted, {"weights": value}).weights for value in ("balanced", [1, 2.5], {"no": 1, 2: 2, True: 0.5})
    ] == ["balanced", (1.0, 2.5), {"no": 1.0, "2": 2.0, "true": 0.5}]
    assert (
        build(Weighted, {"threshold": 1}).threshold == 1.0
        and build(Weighted, {"threshold": "tuned"}).threshold == "tuned"
    )
    for values, said in (
        ({"weights": "balance"}, "config.weights: expected '' or 'balanced' or list of float or mapping to float, got"),
        ({"weights": [1, "x"]}, r"mapping to float, got [1, 'x']"),
        ({"weights": {"a": "b"}}, "got {'a': 'b'}"),
        ({"threshold": "tune"}, "config.threshold: expected float or 'tuned', got 'tune'"),
    ):
        with pytest.raises(ValueError) as error:
            build(Weighted, values)
        assert said in str(error.value)


def test_a_configuration_of_the_package_has_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    root = pathlib.Path(__file__).parent.parent
    assert load_config("pretrain/small") == load_config(str(root / "configs/pretrain/small.yaml"))
    assert load_config("configs/model/tiny.yaml").model.hidden_size == 128
    (tmp_path / "model").mkdir()
    (tmp_path / "model/tiny").write_text("model: {hidden_size: 24}")
    assert load_config("model/tiny").model.hidden_size == 24  # a file comes first
    mine = tmp_path / "mine.yaml"
    for base, size in (("pretrain/small", 512), ("configs/model/tiny.yaml", 128), ("model/tiny", 24)):
        mine.write_text(f"base: {base}\nmodel: {{hidden_dropout_prob: 0.3}}\n")
        monkeypatch.chdir("/")  # a base is relative to its YAML, whatever the folder
        assert load_config(str(mine)).model.hidden_size == size
    mine.write_text("base: pretrain/smal")
    with pytest.raises(ValueError, match=r"mine.yaml: base: .*pretrain/smal: no such .*similar names: pretrain/small"):
        load_config(str(mine))
    with pytest.raises(ValueError, match=r"pretrain/smal: no such configuration file.*similar names: pretrain/small"):
        load_config("pretrain/smal")


def test_phases_replace_the_steps_of_a_base(tmp_path):
    (tmp_path / "base.yaml").write_text("training: {steps: 18, batch_size: 4}\n")
    (tmp_path / "phased.yaml").write_text("base: base.yaml\nphases: [{steps: 18}, {steps: 10, batch_size: 2}]\n")
    config = load_config(str(tmp_path / "phased.yaml"), defaults={"training": {"epochs": 3.0}})
    assert (config.training.steps, config.training.epochs, config.training.batch_size) == (0, 0.0, 4)
    assert [phase.steps for phase in config.phases] == [18, 10]
    asked = load_config(str(tmp_path / "phased.yaml"), flags={"training.steps": 7})
    assert asked.training.steps == 7  # both are asked for: refused where phases are planned


def test_the_vocabulary_gives_the_size_of_the_model_unless_it_is_given(root, golden, tmp_path):
    tiny = str(root / "configs/model/tiny.yaml")
    said, words = [], run_config.counter_of_entries(RunFolder(str(tmp_path)))
    vocab_file = {"tokenizer.vocab_file": str(golden / "vocab_uncased.txt")}
    found = load_config(tiny, flags=vocab_file, count_entries=words, report=said.append)
    assert found.model.vocab_size == 3000 and said == [
        f"model.vocab_size: 3000, the entries of the vocabulary {golden}/vocab_uncased.txt"
    ]
    spare = load_config(
        tiny, flags=vocab_file, overrides=["model.vocab_size=3008"], count_entries=words, report=said.append
    )
    assert spare.model.vocab_size == 3008
    assert said[1:] == ["model.vocab_size: 3008, of which 8 rows are spare: the vocabulary has 3000 entries"]
    assert load_config(tiny, count_entries=words).model.vocab_size == 30522  # BERT-base's, without a vocabulary
    less = load_config(tiny, flags=vocab_file, overrides=["model.vocab_size=2999"], count_entries=words)
    with pytest.raises(
        ValueError, match=r"vocab_uncased.txt: expected at most model.vocab_size = 2999 entries, got 3000"
    ):
        guards.check_vocabulary(less, RunFolder(""), "")
    (tmp_path / "config.yaml").write_text("seed: 1\n")
    (tmp_path / "vocab.txt").write_bytes((golden / "vocab_uncased.txt").read_bytes())
    assert load_config(tiny, count_entries=words).model.vocab_size == 3000  # of the run in the folder
