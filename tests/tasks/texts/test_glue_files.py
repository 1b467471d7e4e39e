"""GLUE's and XNLI's files, on rows in their published columns."""

import pathlib
import shutil

import numpy as np
import pytest

from official_bert.data.rows import Rows
from official_bert.tasks.answers import write_answers
from official_bert.tasks.loading import GLUE, dataset_name
from official_bert.tasks.texts import glue_files
from official_bert.tasks.texts.glue_files import DATASETS, Reader


@pytest.fixture(scope="module")
def folder(root):
    return str(root / "tests" / "fixtures" / "glue")


# data set -> targets of training and of held-out data, first training text or texts
EXPECTED = {
    "cola": ([1, 0, 1, 0, 1, 0], [1, 0], ("The ferry left the harbour before the fog came down.",)),
    "sst2": ([1, 0, 1, 0], [1, 0], ("a patient , quietly funny portrait of a lighthouse crew ",)),
    "mrpc": (
        [1, 0, 1, 0],
        [1, 0],
        (
            'The mayor said "the bridge" would reopen in May, two months late.',
            "Two months behind schedule, the bridge will reopen in May, the mayor said.",
        ),
    ),
    "stsb": ([4.6, 1.4, 0.0, 5.0], [4.8, 1.2, 0.2], ("A boy is peeling a pear.", "A child peels a pear.")),
    "qqp": (
        [0, 1, 1],
        [1, 0],
        ("How is the length of a marathon measured?", "Who measures the length of a marathon course?"),
    ),
    "mnli": (
        [0, 1, 2],
        [1, 2],
        ("The inn stands at the old toll gate and takes guests all year.", "The inn is closed in winter."),
    ),
    "qnli": ([0, 1], [1, 0], ("When was the canal opened?", "After nine years of work, the canal was opened in 1827.")),
    "rte": (
        [0, 1],
        [0, 1],
        ("The opera house, burnt down in 1911, was rebuilt within three years.", "The opera house was rebuilt."),
    ),
    "wnli": ([1, 0, 0], [1, 0], ("The key would not turn in the lock because it was rusty.", "The lock was rusty.")),
}


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("inside", [False, True])
def test_published_files_are_read_from_their_folder_or_the_one_above(folder, name, inside):
    warnings = []
    reader = Reader(name, f"{folder}/{DATASETS[name].folder}" if inside else folder, warn=warnings.append)
    targets, held_out, first = EXPECTED[name]
    train = reader.train()
    np.testing.assert_allclose(train.targets, np.array(targets, train.targets.dtype))
    assert next(train.pairs()) == (first if len(first) == 2 else (*first, ""))
    assert (train.text_pair is None) == (len(first) == 1)
    np.testing.assert_allclose(reader.held_out()[0].data.targets, np.array(held_out, train.targets.dtype))
    if name == "qqp":
        assert "train.tsv:4: expected 6 columns, got 4; left out" in warnings[0]
        assert "dev.tsv:3: column 'question2'" in warnings[1]
    else:
        assert not warnings


def test_tests_are_named_after_the_files_to_hand_in(folder):
    names = {name: [part.name for part in Reader(name, folder).tests()] for name in EXPECTED}
    assert names == {
        "cola": ["CoLA"],
        "sst2": ["SST-2"],
        "mrpc": ["MRPC"],
        "stsb": ["STS-B"],
        "qqp": ["QQP"],
        "qnli": ["QNLI"],
        "mnli": ["MNLI-m", "MNLI-mm", "AX"],
        "rte": ["RTE"],
        "wnli": ["WNLI"],
    }
    assert {name for found in names.values() for name in found} == set(glue_files.SUBMISSION_FILES)
    test = Reader("cola", folder).tests()[0].data
    assert test.targets is None
    assert test.text == ["The clerk misfiled both of the letters.", "Both the of letters misfiled clerk."]


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("MNLI/test_mismatched.tsv", "MNLI-mm"),
        ("MNLI/test_matched.tsv", "MNLI-m"),
        ("diagnostic.tsv", "AX"),
        ("new.tsv", "MNLI-m"),
    ],
)
def test_one_published_file_to_answer_has_the_name_of_its_own_submission(folder, tmp_path, file, name):
    path = f"{folder}/{file}" if "/" in file else shutil.copy(f"{folder}/MNLI/test_matched.tsv", tmp_path / file)
    assert [part.name for part in Reader("mnli", "").tests(str(path))] == [name]


def test_a_list_in_the_place_of_a_label_is_told_with_its_row():
    rows = Rows("train", [{"Quality": [1], "#1 String": "a", "#2 String": "b"}])
    with pytest.raises(ValueError, match=r"train\[row 0\]: column 'Quality': expected one of \['0', '1'\], got \[1\]"):
        Reader("mrpc", "").train(rows)


def test_rows_without_agreement_are_left_out_of_mnli_alone(tmp_path):
    (tmp_path / "train.tsv").write_text("sentence1\tsentence2\tlabel\nOne.\tTwo.\tentailment\nOne.\tTwo.\t-\n")
    with pytest.raises(
        ValueError, match=r"train\.tsv:3: .*expected one of \['entailment', 'not_entailment'\], got '-'"
    ):
        Reader("rte", str(tmp_path)).train()
    (tmp_path / "train.tsv").write_text("sentence1\tsentence2\tgold_label\nOne.\tTwo.\tentailment\nOne.\tTwo.\t-\n")
    assert len(Reader("mnli", str(tmp_path), warn=[].append).train().targets) == 1


@pytest.mark.parametrize(("name", "missing"), [("rte", "-1"), ("stsb", "-1.0")])
def test_rows_to_answer_may_have_no_labels_in_their_column(name, missing, tmp_path):
    path = tmp_path / "test.tsv"
    path.write_text(f"sentence1\tsentence2\t{DATASETS[name].label}\nOne.\tTwo.\t{missing}\n")
    (test,) = Reader(name, "").tests(str(path))
    assert test.data.text == ["One."] and test.data.targets is None
    with pytest.raises(
        ValueError, match=rf"test\.tsv:2: column '{DATASETS[name].label}': expected .*, got '{missing}'"
    ):
        Reader(name, "").held_out(str(path))


def test_mismatched_mnli_is_a_part_of_its_own_and_may_be_missing(folder, tmp_path):
    assert [(part.name, len(part.data)) for part in Reader("mnli", folder).held_out()] == [("", 2), ("_mismatched", 1)]
    shutil.copy(f"{folder}/MNLI/dev_matched.tsv", tmp_path)
    said = []
    assert len(Reader("mnli", str(tmp_path), warn=said.append).held_out()) == 1
    assert "no file dev_mismatched.tsv" in said[0]


def test_xnli_is_read_in_the_language_asked_for(folder):
    reader = Reader("xnli", f"{folder}/XNLI", "de")
    # contradictory, as the training files write it, is contradiction
    assert reader.train().targets.tolist() == [0, 1, 2]
    assert [part.data.text for part in reader.held_out()] == [["Die Mühle steht still.", "Es regnet."]]
    zero_shot = Reader("xnli", folder, "zh", train_language="en")
    assert len(zero_shot.train()) == 2 and zero_shot.held_out()[0].data.targets.tolist() == [1]
    assert Reader("xnli", folder, "de").tests()[0].data.targets is None
    with pytest.raises(ValueError, match=r"xnli\.dev\.tsv: no row in the language 'fr'"):
        Reader("xnli", folder, "fr").held_out()


def test_a_header_where_none_is_expected_is_told(tmp_path):
    (tmp_path / "train.tsv").write_text("source\tlabel\tstar\tsentence\ngj04\t1\t\tGood.\n")
    with pytest.raises(ValueError, match=r"train\.tsv:1: column 'label': .* got 'label' \(is this line a header\?"):
        Reader("cola", str(tmp_path)).train()


def test_missing_files_name_what_was_looked_for_and_where(tmp_path):
    with pytest.raises(ValueError, match=rf"RTE: no file train\.tsv; looked in {tmp_path}, {tmp_path}/RTE"):
        Reader("rte", str(tmp_path)).train()
    with pytest.raises(ValueError, match=r"--data_dir: expected the folder of RTE, which holds train\.tsv"):
        Reader("rte", "").train()


def test_scores_beyond_the_scale_and_wrong_labels_name_their_line(tmp_path, folder):
    text = pathlib.Path(folder, "STS-B", "train.tsv").read_text()
    (tmp_path / "train.tsv").write_text(text.replace("1.400", "14.00"))
    with pytest.raises(ValueError, match=r"train\.tsv:3: column 'score': expected a number from 0 to 5, got '14\.00'"):
        Reader("stsb", str(tmp_path)).train()
    text = pathlib.Path(folder, "RTE", "train.tsv").read_text()
    (tmp_path / "train.tsv").write_text(text.replace("not_entailment", "no_entailment"))
    with pytest.raises(ValueError, match=r"train\.tsv:3: .* expected one of \['entailment', 'not_entailment'\]"):
        Reader("rte", str(tmp_path)).train()


def test_answers_are_labels_or_scores_within_their_scale(tmp_path):
    assert glue_files.answers(DATASETS["qnli"], np.array([[0.1, 2.0], [3.0, -1.0]])) == ["not_entailment", "entailment"]
    assert glue_files.answers(DATASETS["stsb"], np.array([[-0.3], [2.34567], [7.0]])) == ["0.000", "2.346", "5.000"]
    path = write_answers(str(tmp_path / "QNLI.tsv"), enumerate(["not_entailment", "entailment"]))
    assert pathlib.Path(path).read_bytes() == b"index\tprediction\n0\tnot_entailment\n1\tentailment\n"


@pytest.mark.parametrize(
    ("text", "name"), [("MRPC", "mrpc"), ("SST-2", "sst2"), ("sts_b", "stsb"), ("CoLA", "cola"), ("squad", None)]
)
def test_data_sets_are_found_by_the_names_that_people_write(text, name):
    assert dataset_name(text) == name and (*DATASETS,) == GLUE


def test_a_broken_row_to_answer_is_refused_with_its_number(folder, tmp_path):
    path = tmp_path / "test.tsv"
    path.write_text("id\tquestion1\tquestion2\n0\ta\tb\n1\ta\n2\ta\tb\n3\tc\n")
    with pytest.raises(
        ValueError,
        match=r"test\.tsv:3: expected 3 columns, got 2; .*test\.tsv:5: .* the index of the others would shift",
    ):
        Reader("qqp", folder).tests(str(path))
