"""Small files in the layouts of published data sets of tagged words, read and trained on."""

import json

import numpy as np
import pytest
from made_finetuning import data_files, make_config

from official_bert.tasks.data import Steps
from official_bert.tasks.loading import load_task
from official_bert.tasks.tagging import conll
from official_bert.tasks.tagging.options import Options

BC2GM = "Comparison\tO\nwith\tO\nalkaline\tB\nphosphatases\tI\n\n5\tB\nand\tO\n\n"
FEW_NERD = "It\tO\nstars\tO\nHicks\tperson-actor\nHolm\tperson-actor\n\nParis\tlocation-GPE\n\n"
GERMEVAL = (
    "#\thttp://de.wikipedia.org/wiki/Manfred_Korfmann [2009-10-17]\n1\tAufgrund\tO\tO\n2\tKorfmann\tB-PER\tO\n\n"
    "#\tn-tv.de\tvom 26.02.2005 [2005-02-26]\n1\tDer\tO\tO\n2\t#tag\tB-OTH\tO\n\n"
)
KLUE = (
    "## klue-ner\tversion 1\n\n##klue-ner-v1_train_00000-nsmc\t특히 <강릉:LC>\n특\tO\n \tO\n강\tB-LC\n릉\tI-LC\n\n"
    "##klue-ner-v1_train_00001-nsmc\t최고\n최\tO\n고\tO\n\n"
)
WEIBO = "科0\tB-PER.NAM\n全1\tM-PER.NAM\n德2\tE-PER.NAM\n你3\tS-PER.PRO\n好4\tO\n\n"
TWEETS = "#\tO\n#fail\tO\nApple\tB-corp\n\n#now\tB-corp\n\n"


def write(tmp_path, text, name="train.txt"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("text", "columns", "sentences", "note"),
    [
        (BC2GM, Options(), [("O", "O", "B", "I"), ("B", "O")], ""),
        (FEW_NERD, Options(), [("O", "O", "person-actor", "person-actor"), ("location-GPE",)], ""),
        (
            GERMEVAL,
            Options(word_column=1, tag_column=2, separator="\\t"),
            [("O", "B-PER"), ("O", "B-OTH")],
            "2 comment lines left out, the first in line 1",
        ),
        (
            KLUE,
            Options(separator="\\t", empty_text="keep"),
            [("O", "O", "B-LC", "I-LC"), ("O", "O")],
            "3 comment lines left out",
        ),
        (WEIBO, Options(), [("B-PER.NAM", "M-PER.NAM", "E-PER.NAM", "S-PER.PRO", "O")], ""),
        (TWEETS, Options(), [("O", "O", "B-corp"), ("B-corp",)], ""),
    ],
)
def test_published_layouts_are_read(tmp_path, text, columns, sentences, note):
    file = conll.read_sentences(write(tmp_path, text), columns)
    assert [sentence.tags for sentence in file.sentences] == sentences
    assert note in " ".join(file.notes) and bool(note) == bool(file.notes)


def test_a_word_that_begins_with_a_hash_and_has_a_wrong_tag_is_no_comment(tmp_path):
    with pytest.raises(
        ValueError, match=r"train\.txt:2: expected a tag such as O, B-PER or I-PER, got 'Q'; the file has 'B-X' in"
    ):
        conll.read_sentences(write(tmp_path, "a B-X\n#b Q\n"))


def test_letters_alone_beside_types_continue_them_or_are_refused(tmp_path):
    (sentence,) = conll.read_sentences(write(tmp_path, "New B-LOC\nYork I\nnow O\n")).sentences
    assert sentence.tags == ("B-LOC", "I-LOC", "O")
    with pytest.raises(ValueError, match=r"train\.txt:3: expected a tag with a type, as others here, .* got 'I'"):
        conll.read_sentences(write(tmp_path, "New B-LOC\nYork O\nnow I\n"))


@pytest.mark.parametrize(("empty", "count"), [("refuse", 0), ("skip", 1), ("keep", 3)])
def test_rows_without_words_and_blank_words_are_refused_left_out_or_kept(tmp_path, empty, count):
    rows = [
        {"tokens": ["a"], "ner_tags": ["B-X"]},
        {"tokens": [], "ner_tags": []},
        {"tokens": ["", "b"], "ner_tags": ["O", "O"]},
    ]
    path = write(tmp_path, "".join(json.dumps(row) + "\n" for row in rows), "train.jsonl")
    columns = Options(empty_text=empty)
    if empty == "refuse":
        with pytest.raises(
            ValueError, match=r"train\.jsonl:2: expected a list of words .* got \[\]; options\.empty_text=skip or keep"
        ):
            conll.read_sentences(path, columns)
        return
    file = conll.read_sentences(path, columns)
    assert len(file.sentences) == count
    assert (
        f"train.jsonl:2: expected words, got []; {'left out' if empty == 'skip' else 'kept'}, as is 1 more"
        in file.notes[0]
    )


def resolve(golden, train_file, steps=None, **options):
    config = make_config(
        "ner",
        tokenizer={"vocab_file": str(golden / "vocab_cased.txt"), "do_lower_case": False},
        options={"max_seq_length": 16, "dev_share": 0.0, **options},
    )
    return load_task(config).data.resolve(data_files(train_file=str(train_file)), steps or Steps(evaluate=False))


def perfect(tagged):
    """Returns predictions that give every labelled word its gold tag, and the last label to the others."""
    labels = len(tagged.task.options.labels)
    rows = [tagged.source.examples[index] for index in np.concatenate(tagged.source.plan(0))]
    return [
        {"logits": np.eye(labels, dtype="float32")[np.where(row["tag_mask"] > 0, row["tags"], labels - 1)]}
        for row in rows
    ]


@pytest.mark.parametrize(
    ("text", "options", "labels", "told", "scores"),
    [
        (BC2GM, {}, ["O", "B", "I"], "2 sentences, IOB2 tags: entity 2", {"f1": 1.0, "f1_entity": 1.0}),
        (
            FEW_NERD,
            {},
            ["O", "B-location-GPE", "I-location-GPE", "B-person-actor", "I-person-actor"],
            "2 sentences, IO tags: location-GPE 1, person-actor 1",
            {"f1_person-actor": 1.0},
        ),
        (
            FEW_NERD,
            {"labels": ["O", "person-actor", "location-GPE"]},
            ["O", "person-actor", "location-GPE"],
            "IO tags",
            {"f1_person-actor": 1.0, "f1": 1.0},
        ),
        (
            WEIBO,
            {"scheme": "bmes"},
            [
                "O",
                "B-PER.NAM",
                "M-PER.NAM",
                "E-PER.NAM",
                "S-PER.NAM",
                "B-PER.PRO",
                "M-PER.PRO",
                "E-PER.PRO",
                "S-PER.PRO",
            ],
            "1 sentences, BMES tags: PER.NAM 1, PER.PRO 1",
            {"f1": 1.0},
        ),
    ],
)
def test_published_layouts_are_trained_on_and_measured(golden, tmp_path, text, options, labels, told, scores):
    data = resolve(golden, write(tmp_path, text), **options)
    assert list(data.task.options.labels) == labels and any(told in note for note in data.notes)
    again = load_task(data.task.config).data.resolve(
        data_files(eval_file=write(tmp_path, text, "dev.txt")), Steps(train=False)
    )
    found = again.held_out.evaluate(perfect(again.held_out))
    assert {name: found[name] for name in scores} == scores


def test_a_file_whose_only_tag_is_o_is_refused(golden, tmp_path):
    with pytest.raises(
        ValueError, match=r"train\.txt: expected at least two different tags, got \['O'\] in 1 sentences"
    ):
        resolve(golden, write(tmp_path, "a O\nb O\n"))


def test_words_that_are_not_labelled_count_neither_in_training_nor_in_scores(golden, tmp_path):
    rows = [{"tokens": ["her", "atlas", "rained"], "ner_tags": [1, -100, 0]}, {"tokens": ["the"], "ner_tags": [-100]}]
    path = write(tmp_path, json.dumps(rows), "train.json")
    data = resolve(golden, path, labels=["O", "B-X", "I-X"], class_weights="balanced")
    row = data.train.examples[0]
    assert row["tags"][row["tag_mask"] > 0].tolist() == [1, 0]
    again = load_task(data.task.config).data.resolve(data_files(eval_file=path), Steps(train=False))
    assert again.held_out.evaluate(perfect(again.held_out))["f1"] == 1.0  # the last label at the others would be wrong
    again.held_out.write(perfect(again.held_out), str(tmp_path))
    assert "atlas\t-100\tI-X" in (tmp_path / "predictions.conll").read_text()
