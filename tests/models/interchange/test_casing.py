"""Whether text is lower-cased: told by tokenizer files, by the vocabulary, by the folder's name, by a flag;
contradictions.
"""

import dataclasses
import json

import pytest
from made_checkpoints import SMALL, WORDS, stored_small

from official_bert.config import Config, ConfigSources, TokenizerConfig, save_config
from official_bert.models.interchange import casing, formats
from official_bert.run_folder import RunFolder
from official_bert.runs.checks import guards
from official_bert.runs.configuration import run_config, task_config
from official_bert.tasks.loading import restore_for_inference

CASED = [*WORDS[:-2], "Anna", "Rome"]
CHINESE = [*WORDS[:5], *map(chr, range(0x4E00, 0x4E00 + 994)), "<S>", *"abcdefgh"]


def test_what_a_vocabulary_says():
    assert casing.has_capitals(CASED) and not casing.has_capitals(WORDS) and not casing.has_capitals(CHINESE)


@pytest.mark.parametrize(
    ("name", "vocab", "lower"),
    [
        ("cased_L-12_H-768_A-12", CASED, False),
        ("cased_L-12_H-768_A-12", WORDS, False),
        ("uncased_L-2_H-128_A-2", WORDS, True),
        ("multi_cased_L-12_H-768_A-12", WORDS, False),
        ("BERT-Base-Uncased", None, True),
        ("chinese_L-12_H-768_A-12", CHINESE, True),
        ("my_model", CASED, False),
        ("my_model", WORDS, None),
        ("my_model", None, None),
        ("encased", WORDS, None),
    ],
)
def test_a_tf1_folder_says_it_by_its_vocabulary_and_its_name(name, vocab, lower):
    assert casing.of_folder(f"models/{name}/bert_model.ckpt", vocab) is lower


def written(tmp_path, form, name="out", vocab=WORDS, **files):
    """Writes a small encoder; `files` are changes of JSON files, by name without suffix."""
    formats.write(dataclasses.replace(stored_small("pretraining"), vocab=vocab), form, str(tmp_path / name))
    for file, changes in files.items():
        path = tmp_path / name / f"{file}.json"
        path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | changes))
    return str(tmp_path / name)


def test_contradictions_are_refused(tmp_path):
    with pytest.raises(
        ValueError, match="its folder's name says that text is lower-cased, but more than 1 % of the entries"
    ):
        formats.read(written(tmp_path, "tf1", "uncased_L-2", CASED))
    uncased, cased = written(tmp_path, "tf1", "uncased_L-3"), written(tmp_path, "tf1", "cased_L-3", CASED)
    (tmp_path / "cased.txt").write_text("\n".join(CASED))
    with pytest.raises(
        ValueError, match="cased.txt: more than 1 % of its entries have capital letters, but text is lower-cased for"
    ):
        run_config.checkpoint_values(uncased, vocab_file=str(tmp_path / "cased.txt"))
    assert run_config.checkpoint_values(cased).values["tokenizer"]["do_lower_case"] is False
    plain = written(tmp_path, "tf1", "plain", vocab=None)
    assert "do_lower_case" not in run_config.checkpoint_values(plain).values["tokenizer"]
    assert (
        run_config.checkpoint_values(plain, vocab_file=str(tmp_path / "cased.txt")).values["tokenizer"]["do_lower_case"]
        is False
    )
    with pytest.raises(ValueError, match="--do_lower_case=true: text is not lower-cased for there"):
        casing.agreed(False, True, "there")
    assert (
        casing.agreed(None, None, "") is None and casing.agreed(True, None, "") and not casing.agreed(None, False, "")
    )


@pytest.fixture
def cased(tmp_path):
    (tmp_path / "cased.txt").write_text("\n".join(CASED))
    return str(tmp_path / "cased.txt")


def test_a_vocabulary_with_capitals_is_refused_for_lower_cased_text_unless_earlier_training_was_so(
    tmp_path, cased, caplog
):
    config, none = Config(model=SMALL, tokenizer=TokenizerConfig(vocab_file=cased)), RunFolder("")
    told = (
        r"cased.txt: more than 1 % of its entries have capital .* --do_lower_case=False \(tokenizer.do_lower_case: "
        r"false\)"
    )
    for checkpoint in ("", written(tmp_path, "tf1", "plain", vocab=None), written(tmp_path, "tf1", "cased_L-2", CASED)):
        with pytest.raises(ValueError, match=told):
            guards.check_vocabulary(config, RunFolder(str(tmp_path / "new")), checkpoint)
    with pytest.raises(ValueError, match="cased.txt: .* but text is lower-cased for TF 1 checkpoint .*uncased_L-2"):
        guards.check_vocabulary(config, none, written(tmp_path, "tf1", "uncased_L-2"))
    guards.check_vocabulary(
        dataclasses.replace(config, tokenizer=TokenizerConfig(vocab_file=cased, do_lower_case=False)), none, ""
    )
    assert not caplog.messages
    guards.check_vocabulary(
        config, none, written(tmp_path, "hugging_face", "lower", CASED, tokenizer_config={"do_lower_case": True})
    )
    (tmp_path / "run").mkdir()
    save_config(config, str(tmp_path / "run/config.yaml"))
    guards.check_vocabulary(config, RunFolder(str(tmp_path / "run")), "")
    save_config(Config(model=SMALL), str(tmp_path / "run/config.yaml"))  # begun without a vocabulary
    with pytest.raises(ValueError, match=told):
        guards.check_vocabulary(config, RunFolder(str(tmp_path / "run")), "")
    assert len(caplog.messages) == 2 and all(
        "text is lower-cased, as in earlier training" in line for line in caplog.messages
    )


def test_the_vocabulary_of_a_run_without_one_tells_its_casing(tmp_path, cased):
    run = str(tmp_path / "run")
    formats.write(dataclasses.replace(stored_small("pretraining"), vocab=None, do_lower_case=None), "ours", run)
    (tmp_path / "lower.txt").write_text("\n".join(WORDS))
    for vocab, asked, lower in (
        (cased, None, False),
        (cased, False, False),
        ("lower", None, True),
        ("lower", False, False),
    ):
        path = cased if vocab == cased else str(tmp_path / "lower.txt")
        assert restore_for_inference(run, path, asked)[0].config.tokenizer == TokenizerConfig(
            vocab_file=path, do_lower_case=lower
        )
    with pytest.raises(
        ValueError, match="cased.txt: more than 1 % of its entries have capital letters, but text is lower-cased"
    ):
        restore_for_inference(run, cased, True)
    formats.write(
        dataclasses.replace(stored_small("pretraining"), vocab=None, do_lower_case=False),
        "ours",
        told := str(tmp_path / "told"),
    )
    assert not restore_for_inference(told, str(tmp_path / "lower.txt"))[0].config.tokenizer.do_lower_case
    with pytest.raises(ValueError, match="--do_lower_case=true: text is not lower-cased"):
        restore_for_inference(told, str(tmp_path / "lower.txt"), True)


def test_another_vocabulary_of_the_same_size_is_refused_unless_it_fills_free_places(tmp_path):
    free = [*WORDS[:-2], "[unused7]", WORDS[-1]]
    path, given = written(tmp_path, "tf1", vocab=free), tmp_path / "given.txt"
    other = f"given.txt:{len(free) - 2}: expected {free[-3]!r}, .* got {free[-1]!r}"
    for entries, told in (
        (free, ""),
        ([*free[:-2], "domain", free[-1]], ""),
        ([*free[:-3], free[-1], free[-2], free[-3]], other),
    ):
        given.write_text("\n".join(entries) + "\n")
        if told:
            with pytest.raises(ValueError, match=told):
                run_config.checkpoint_values(path, vocab_file=str(given))
        else:
            run_config.checkpoint_values(path, vocab_file=str(given))


@pytest.mark.parametrize("place", ["flag", "override", "yaml"])
def test_the_users_vocabulary_decides_beside_a_checkpoint_wherever_it_is_named(tmp_path, cased, place):
    (tmp_path / "run.yaml").write_text(f"task: classification\ntokenizer: {{vocab_file: {cased}}}\n")
    (tmp_path / "base.yaml").write_text("base: run.yaml\n")
    arguments = {
        "flag": {"flags": {"tokenizer.vocab_file": cased}},
        "override": {"overrides": (f"tokenizer.vocab_file={cased}",)},
        "yaml": {},
    }[place]
    sources = ConfigSources(str(tmp_path / "run.yaml") if place == "yaml" else "", **arguments)

    def make(checkpoint):
        return task_config.make_config("classification", sources, checkpoint, str(tmp_path / "new")).tokenizer

    assert make(written(tmp_path, "tf1", "plain", vocab=None)) == TokenizerConfig(vocab_file=cased, do_lower_case=False)
    with pytest.raises(
        ValueError, match="cased.txt: more than 1 % .* but text is lower-cased for TF 1 checkpoint .*uncased_L-3"
    ):
        make(written(tmp_path, "tf1", "uncased_L-3"))
    # A vocabulary that the YAML inherits gives way to the checkpoint's.
    inherits = task_config.make_config(
        "", ConfigSources(str(tmp_path / "base.yaml")), written(tmp_path, "tf1", "uncased_L-4"), str(tmp_path / "new")
    )
    assert inherits.tokenizer == TokenizerConfig(vocab_file=str(tmp_path / "uncased_L-4/vocab.txt"), do_lower_case=True)


def test_the_tokenizers_class_may_stand_in_the_models_configuration(tmp_path):
    there = {"config": {"tokenizer_class": "FunnelTokenizer"}}
    with pytest.raises(
        ValueError, match="/config.json: tokenizer_class: expected BertTokenizer, got 'FunnelTokenizer'"
    ):
        formats.read(written(tmp_path, "hugging_face", "foreign", tokenizer_config={"tokenizer_class": None}, **there))
    overruled = written(
        tmp_path, "hugging_face", "overruled", tokenizer_config={"tokenizer_class": "BertTokenizerFast"}, **there
    )
    assert formats.read(overruled).do_lower_case is False  # as in Hugging Face, where tokenizer_config.json comes first


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"tokenizer_class": "FunnelTokenizer"}, "tokenizer_class: expected BertTokenizer, got 'FunnelTokenizer'"),
        ({"tokenize_chinese_chars": False}, "tokenize_chinese_chars: False is not supported; expected True"),
        (
            {"strip_accents": False, "do_lower_case": True},
            "strip_accents: False with do_lower_case True is not supported",
        ),
        ({"strip_accents": True, "do_lower_case": False}, "strip_accents: True with do_lower_case False"),
        ({"do_basic_tokenize": False}, "do_basic_tokenize: False"),
    ],
)
def test_another_tokenizer_is_refused(tmp_path, changes, told):
    with pytest.raises(ValueError, match=told):
        formats.read(written(tmp_path, "hugging_face", tokenizer_config=changes))
    if "do_lower_case" not in changes and "tokenizer_class" not in changes:  # also if tokenizer.json tells the casing
        fast = {"normalizer": {"type": "BertNormalizer", "lowercase": True}}
        with pytest.raises(ValueError, match=told):
            formats.read(
                written(
                    tmp_path,
                    "hugging_face",
                    "fast",
                    tokenizer_config={"do_lower_case": None, **changes},
                    tokenizer=fast,
                )
            )


def test_switches_of_one_file_are_those_of_the_casing_in_the_other(tmp_path):
    fast = {"normalizer": {"type": "BertNormalizer", "lowercase": False}}
    one = written(
        tmp_path,
        "hugging_face",
        "one",
        tokenizer_config={"do_lower_case": None, "strip_accents": False},
        tokenizer=fast,
    )
    assert formats.read(one).do_lower_case is False
    kept = {"do_lower_case": None, "strip_accents": False}
    fast["normalizer"]["lowercase"] = True
    with pytest.raises(ValueError, match="tokenizer_config.json: strip_accents: False with do_lower_case True"):
        formats.read(written(tmp_path, "hugging_face", "two", tokenizer_config=kept, tokenizer=fast))
    fast["normalizer"]["type"] = "NFKC"
    with pytest.raises(ValueError, match="tokenizer.json: normalizer: expected BertNormalizer, got NFKC"):
        formats.read(
            written(tmp_path, "hugging_face", "three", tokenizer_config={"do_lower_case": True}, tokenizer=fast)
        )


def test_tokenizer_config_overrules_tokenizer_json_which_overrules_the_vocabulary(tmp_path):
    fast = {"normalizer": {"type": "BertNormalizer", "lowercase": True, "strip_accents": None}}
    one = written(tmp_path, "hugging_face", "one", CASED, tokenizer_config={"do_lower_case": False}, tokenizer=fast)
    other = written(tmp_path, "hugging_face", "other", CASED, tokenizer_config={"do_lower_case": None}, tokenizer=fast)
    third = written(tmp_path, "hugging_face", "third", CASED, tokenizer_config={"do_lower_case": None})
    assert [casing.is_lower_case(formats.read(path)) for path in (one, other, third)] == [False, True, False]
    with pytest.raises(ValueError, match="tokenizer.json: normalizer: expected BertNormalizer, got Sequence"):
        formats.read(
            written(
                tmp_path,
                "hugging_face",
                "fourth",
                tokenizer_config={"do_lower_case": None},
                tokenizer={"normalizer": {"type": "Sequence"}},
            )
        )
