"""Whether text is lower-cased: told by tokenizer files, by the vocabulary, by the folder's name, by a flag; contradictions."""

import dataclasses
import json

import pytest
from made_checkpoints import WORDS, stored_small

from official_bert.models.interchange import casing, formats
from official_bert.training import runs

CASED = [*WORDS[:-2], "Anna", "Rome"]
CHINESE = [*WORDS[:5], *map(chr, range(0x4E00, 0x4E00 + 994)), "<S>", *"abcdefgh"]


def test_what_a_vocabulary_says():
    assert casing.has_capitals(CASED) and not casing.has_capitals(WORDS) and not casing.has_capitals(CHINESE)


@pytest.mark.parametrize(("name", "vocab", "lower"), [
    ("cased_L-12_H-768_A-12", CASED, False), ("cased_L-12_H-768_A-12", WORDS, False), ("uncased_L-2_H-128_A-2", WORDS, True),
    ("multi_cased_L-12_H-768_A-12", WORDS, False), ("BERT-Base-Uncased", None, True), ("chinese_L-12_H-768_A-12", CHINESE, True),
    ("my_model", CASED, False), ("my_model", WORDS, None), ("my_model", None, None), ("encased", WORDS, None)])
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
    with pytest.raises(ValueError, match="its folder's name says that text is lower-cased, but more than 1 % of the entries"):
        formats.read(written(tmp_path, "tf1", "uncased_L-2", CASED))
    uncased, cased = written(tmp_path, "tf1", "uncased_L-3"), written(tmp_path, "tf1", "cased_L-3", CASED)
    (tmp_path / "cased.txt").write_text("\n".join(CASED))
    with pytest.raises(ValueError, match="cased.txt: more than 1 % of its entries have capital letters, but text is lower-cased for"):
        runs.checkpoint_values(uncased, vocab_file=str(tmp_path / "cased.txt"))
    assert runs.checkpoint_values(cased).values["tokenizer"]["do_lower_case"] is False
    plain = written(tmp_path, "tf1", "plain")
    assert "do_lower_case" not in runs.checkpoint_values(plain).values["tokenizer"]
    assert runs.checkpoint_values(plain, vocab_file=str(tmp_path / "cased.txt")).values["tokenizer"]["do_lower_case"] is False
    with pytest.raises(ValueError, match="--do_lower_case=true: text is not lower-cased for there"):
        casing.agreed(False, True, "there")
    assert casing.agreed(None, None, "") is None and casing.agreed(True, None, "") and not casing.agreed(None, False, "")


@pytest.mark.parametrize(("changes", "told"), [
    ({"tokenizer_class": "BertJapaneseTokenizer"}, "tokenizer_class: expected BertTokenizer, got 'BertJapaneseTokenizer'"),
    ({"tokenize_chinese_chars": False}, "tokenize_chinese_chars: False is not computed here; expected True"),
    ({"strip_accents": False, "do_lower_case": True}, "strip_accents: False with do_lower_case True is not computed here"),
    ({"strip_accents": True, "do_lower_case": False}, "strip_accents: True with do_lower_case False"),
    ({"do_basic_tokenize": False}, "do_basic_tokenize: False")])
def test_another_tokenizer_is_refused(tmp_path, changes, told):
    with pytest.raises(ValueError, match=told):
        formats.read(written(tmp_path, "hugging_face", tokenizer_config=changes))


def test_tokenizer_config_overrules_tokenizer_json_which_overrules_the_vocabulary(tmp_path):
    fast = {"normalizer": {"type": "BertNormalizer", "lowercase": True, "strip_accents": None}}
    one = written(tmp_path, "hugging_face", "one", CASED, tokenizer_config={"do_lower_case": False}, tokenizer=fast)
    other = written(tmp_path, "hugging_face", "other", CASED, tokenizer_config={"do_lower_case": None}, tokenizer=fast)
    third = written(tmp_path, "hugging_face", "third", CASED, tokenizer_config={"do_lower_case": None})
    assert [casing.is_lower_case(formats.read(path)) for path in (one, other, third)] == [False, True, False]
    with pytest.raises(ValueError, match="tokenizer.json: normalizer: expected BertNormalizer, got Sequence"):
        formats.read(written(tmp_path, "hugging_face", "fourth", tokenizer_config={"do_lower_case": None},
                             tokenizer={"normalizer": {"type": "Sequence"}}))
