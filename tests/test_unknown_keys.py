"""Keys that were removed, and those of other versions and forks in the `config.yaml` of a run."""

import dataclasses

import pytest
import yaml
from commands import run_here
from made_pretraining import make_config

import official_bert
from official_bert import typed_values
from official_bert.config import Config, ConfigSources, load_config, save_config, to_dict
from official_bert.run_folder import RunFolder
from official_bert.runs.checks import origins
from official_bert.tasks.loading import load_task, task_class

OPTIONS = task_class("pretraining").Options
REMOVED = [
    ("training.rewind_on_spike", 0.0, 2.0, "training.skip_gradient_norm, or an older checkpoint with another seed"),
    ("training.replay", "", "log.jsonl", "training.steps"),
]


@pytest.fixture
def said(monkeypatch):
    """Collects what is said once."""
    lines = []
    typed_values._say_once.cache_clear()
    monkeypatch.setattr(typed_values.logging, "warning", lambda form, *values: lines.append(form % values))
    yield lines
    typed_values._say_once.cache_clear()


def write(folder, **more):
    """Writes the configuration of a run as a fork with more keys would; returns the run."""
    run = RunFolder(str(folder))
    run.write_config(make_config(training={"steps": 9}, options={"masking": {"rate": 0.2}}), OPTIONS)
    path = folder / "config.yaml"
    values = yaml.safe_load(path.read_text())
    for key, value in more.items():
        *sections, name = key.split("__")
        at = values
        for section in sections:
            at = at.setdefault(section, {})
        at[name] = at[name] + value if name == "changed" else value
    path.write_text(yaml.safe_dump(values, sort_keys=False))
    return run


@pytest.mark.parametrize(("key", "off", "value", "instead"), REMOVED)
def test_a_removed_key_is_read_if_it_is_off_and_otherwise_names_what_replaces_it(tmp_path, key, off, value, instead):
    section, name = key.split(".")
    assert load_config(overrides=[f"{key}={off}"]) == Config()
    told = rf"^config\.{key}: this key was removed; {instead}.*; got {value!r}$"
    with pytest.raises(ValueError, match=told):
        load_config(overrides=[f"{key}={value}"])
    for given, is_refused in ((off, False), (value, True)):
        path = tmp_path / f"{given}.yaml"
        path.write_text(yaml.safe_dump({section: {name: given}}))
        done = run_here(
            "-m",
            "official_bert.run_pretraining",
            f"--config={path}",
            "--input_file=none.tfrecord",
            f"--output_dir={tmp_path / 'run'}",
        )
        lines = done.stderr.splitlines()
        assert done.returncode == 1 and len(lines) == 1
        assert ("this key was removed" in lines[0]) == is_refused, lines
    with pytest.raises(ValueError, match=f"{key}: this key was removed; {instead}"):
        official_bert.fine_tune("sst-2", train="none.tsv", output_dir=tmp_path / "other", **{name: value})


@pytest.mark.parametrize(("key", "off", "value", "instead"), REMOVED)
def test_a_run_that_used_a_removed_key_answers(tmp_path, key, off, value, instead):
    for number, given in enumerate((off, value)):
        run = write(tmp_path / str(number), **{key.replace(".", "__"): given})
        assert load_task(run.require_config()).config.training.steps == 9


def test_a_run_s_configuration_lists_what_differs_from_the_defaults(tmp_path):
    values = yaml.safe_load((tmp_path / "config.yaml").read_text()) if write(tmp_path) else {}
    defaults = to_dict(Config())
    assert (
        values["training"].keys() == defaults["training"].keys() and values["model"].keys() == defaults["model"].keys()
    )
    flat = {f"{section}.{name}" for section in ("model", "training") for name in values[section]}
    differing = {
        key
        for key in flat
        if values[key.split(".")[0]][key.split(".")[1]] != defaults[key.split(".")[0]][key.split(".")[1]]
    }
    assert {key for key in values["changed"] if key.startswith(("model.", "training."))} == differing
    assert "training.steps" in differing and "options.masking.rate" in values["changed"]
    assert "options.masking.strategy" not in values["changed"] and "seed" not in values["changed"]
    save_config(Config(), str(tmp_path / "other.yaml"))
    assert yaml.safe_load((tmp_path / "other.yaml").read_text())["changed"] == []


def test_unknown_keys_that_are_not_listed_are_ignored_and_said_once(tmp_path, said):
    foreign = {"later": 1, "training__later": [2], "training__distillation__later": 3, "model__later": {"a": 4}}
    plain, run = (
        write(tmp_path / "plain"),
        write(tmp_path / "run", **foreign, options__later=5, options__masking__later=6),
    )
    for _ in range(2):
        task = load_task(run.require_config())
        assert task.config == load_task(plain.require_config()).config
    keys = ["later", "training.later", "training.distillation.later", "model.later", "options.later"]
    assert sorted(line.partition(":")[0] for line in said) == sorted([*keys, "options.masking.later"])
    assert len(said) == 6 and all("not known here and ignored" in line for line in said)
    # The run may be continued, and be the base of another one.
    assert origins.check_same_run(plain.recorded_config(), run, options=OPTIONS) == []
    (tmp_path / "next.yaml").write_text("base: run/config.yaml\ntraining: {steps: 12}\n")
    assert load_config(str(tmp_path / "next.yaml")).training.steps == 12


@pytest.mark.parametrize(
    ("foreign", "listed", "told"),
    [
        ({"later": 1}, "later", r"config: unknown keys \['later'\]"),
        ({"training__later": 1}, "training.later", r"config\.training: unknown keys \['later'\]"),
        ({"model__later": {"a": 1}}, "model.later.a", r"config\.model: unknown keys \['later'\]"),
        ({"options__later": 1}, "options.later", r"config\.options: unknown keys \['later'\]"),
        ({"options__masking__later": 1}, "options.masking.later", r"unknown keys \['later'\]"),
    ],
)
def test_unknown_keys_that_are_listed_are_refused(tmp_path, foreign, listed, told, said):
    run = write(tmp_path, **foreign, changed=[listed])
    with pytest.raises(ValueError, match=told):
        load_task(run.require_config())
    assert not said


def test_a_user_s_own_unknown_key_is_refused_beside_a_run_with_a_list(tmp_path):
    run = write(tmp_path)
    for override in ("training.later=1", "options.later=1"):
        with pytest.raises(ValueError, match=r"unknown keys \['later'\]"):
            load_task(run.config([override]))
    path = run.file("config.yaml")
    with pytest.raises(ValueError, match=r"unknown keys \['later'\]"):
        load_config(path, overrides=["training.later=1"])
    sources = ConfigSources(path, overrides=("training.steps=3",))
    assert sources.read()[1]["training"]["steps"] == 3
    with open(path, "a") as file:
        file.write("changed: 3\n")
    with pytest.raises(ValueError, match="duplicate key 'changed'"):
        load_config(path)


def test_a_list_that_is_none_is_refused(tmp_path):
    (tmp_path / "own.yaml").write_text("changed: 3\n")
    with pytest.raises(ValueError, match=r"own\.yaml: changed: expected a list of keys, got 3$"):
        load_config(str(tmp_path / "own.yaml"))


def test_keys_that_were_removed_are_no_fields():
    for cls in (type(Config().training), Config):
        assert not {field.name for field in dataclasses.fields(cls)} & {*typed_values.removed_keys(cls)}
