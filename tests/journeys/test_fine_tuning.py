"""Stories of people who fine-tune on their own files and with other people's checkpoints, by whole commands."""

import csv
import json
import random
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file, save_file

from official_bert.tasks.loading import restore_model

pytestmark = pytest.mark.slow
TUNE = "python -m official_bert.run_finetuning --cache_dir= --max_seq_length=32 "
PREDICT = "python -m official_bert.run_predict "
QUICK = "--train_batch_size=16 --learning_rate=2e-3 --num_train_epochs=12 --set=training.log_every=1000 "


@pytest.fixture
def tuner(person, golden, root):
    """Returns a person with a checkpoint in `bert`, GLUE in `glue`, and made-up reviews."""
    shutil.copytree(golden / "tf1_bert", person.folder / "bert")
    shutil.copy(golden / "vocab_uncased.txt", person.folder / "bert/vocab.txt")
    shutil.copytree(root / "tests/fixtures/glue", person.folder / "glue")
    for seed, (name, count) in enumerate((("train", 200), ("dev", 40), ("new", 12))):
        write_csv(person.folder / f"{name}.csv", reviews(count, seed))
    return person


def reviews(count, seed):
    """Draws rows of texts; `label` says which of two words is in the text, `ferry` and `violin` whether they are."""
    draw = random.Random(seed)
    rows = []
    for number in range(count):
        words = [draw.choice(("the", "while", "it", "in", "three")) for _ in range(6)]
        word = draw.choice(("ferry", "violin"))
        words[draw.randrange(6)] = word
        rows.append(
            {
                "id": f"r{seed}-{number}",
                "text": " ".join(words),
                "label": "boat" if word == "ferry" else "music",
                "ferry": int(word == "ferry"),
                "violin": int(word == "violin"),
            }
        )
    return rows


def write_csv(path, rows):
    """Writes rows with their keys as columns."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def results(folder):
    """Reads the metrics of a run."""
    lines = (folder / "eval_results.txt").read_text(encoding="utf-8").splitlines()
    return {name: float(value) for name, value in (line.split(" = ") for line in lines)}


def reorder(folder, order, rename=str):
    """Gives a Hugging Face folder's classes another order, and its weights with them."""
    tensors, config = (
        load_file(folder / "model.safetensors"),
        json.loads((folder / "config.json").read_text(encoding="utf-8")),
    )
    for name in ("classifier.weight", "classifier.bias"):
        tensors[name] = np.ascontiguousarray(tensors[name][order])
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    labels = [rename(config["id2label"][str(place)]) for place in order]
    config |= {
        "id2label": {str(place): label for place, label in enumerate(labels)},
        "label2id": {label: place for place, label in enumerate(labels)},
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return config


def test_mnli_from_a_folder_whose_classes_have_another_order(tuner):
    tuner.types(
        f"{TUNE} --task=mnli --data_dir=glue --init_checkpoint=bert --output_dir=runs/mnli --do_predict {QUICK} "
        "--train_batch_size=3 --num_train_epochs=30"
    )
    tuner.types("python tools/convert_checkpoint.py --to=hugging_face --input=runs/mnli --output=hf")
    config = reorder(tuner.folder / "hf", [1, 2, 0], str.upper)
    assert config["problem_type"] == "single_label_classification" and config["id2label"]["0"] == "ENTAILMENT"
    done = tuner.types(
        f"{TUNE} --task=mnli --data_dir=glue --init_checkpoint=hf --output_dir=again --nodo_train --do_predict"
    )
    assert "its classes ENTAILMENT, NEUTRAL, CONTRADICTION were put into the task's order" in done.out
    assert results(tuner.folder / "again") == pytest.approx(results(tuner.folder / "runs/mnli"), rel=1e-5)
    for name in ("MNLI-m.tsv", "MNLI-mm.tsv", "AX.tsv"):
        assert (tuner.folder / "again" / name).read_text() == (tuner.folder / "runs/mnli" / name).read_text()
    done = tuner.types(
        f"{TUNE} --task=rte --data_dir=glue --init_checkpoint=hf --output_dir=other --nodo_train",
        status=1,
        messages=("error: .*",),
    )
    assert "expected a fine-tuned checkpoint" in done.err
    reorder(tuner.folder / "hf", [0, 1, 2], lambda label: {"NEUTRAL": "maybe"}.get(label, label))
    done = tuner.types(
        f"{TUNE} --task=mnli --data_dir=glue --init_checkpoint=hf --output_dir=other --nodo_train",
        status=1,
        messages=("error: .*",),
    )
    assert (
        "its classes are ENTAILMENT, maybe, CONTRADICTION, those of the task are contradiction, entailment, neutral"
        in done.err
    )
    assert not (tuner.folder / "other").exists()


def test_a_model_of_several_labels_comes_back_as_one(tuner):
    columns = "--set=options.kind=multi_label --set=options.label_columns=[violin,ferry]"
    tuner.types(
        f"{TUNE} --task=classification --train_file=train.csv --eval_file=dev.csv --init_checkpoint=bert {columns} "
        f"--output_dir=runs/reviews {QUICK}"
    )
    assert results(tuner.folder / "runs/reviews")["exact_match"] > 0.9
    tuner.types("python tools/convert_checkpoint.py --to=hugging_face --input=runs/reviews --output=hf")
    config = reorder(tuner.folder / "hf", [1, 0])
    assert config["problem_type"] == "multi_label_classification"
    tuner.types(f"{PREDICT} --task=classification --model=hf --output_file=answers.jsonl 'the ferry while it in three'")
    answer = json.loads((tuner.folder / "answers.jsonl").read_text(encoding="utf-8"))
    assert [label for label in answer["labels"] if label] == ["ferry"] and sum(
        answer["probabilities"]
    ) != pytest.approx(1.0, abs=1e-6)
    tuner.types(
        f"{TUNE} --task=classification --eval_file=dev.csv --predict_file=new.csv --init_checkpoint=hf --nodo_train "
        "--set=options.label_columns=[violin,ferry] --output_dir=again"
    )
    assert results(tuner.folder / "again") == pytest.approx(results(tuner.folder / "runs/reviews"), rel=1e-5)
    done = tuner.types(
        f"{TUNE} --task=classification --eval_file=dev.csv --init_checkpoint=hf --nodo_train --output_dir=other "
        "--set=options.kind=classifier",
        status=1,
        messages=("error: .*",),
    )
    assert "it was trained as multi_label, the task is classifier" in done.err


def test_a_run_is_evaluated_and_asked_from_another_folder_with_its_own_options(tuner):
    tuner.types(
        f"{TUNE} --task=classification --train_file=train.csv --eval_file=dev.csv --init_checkpoint=bert {QUICK} "
        "--set=options.labels=[music,boat] --output_dir=runs/reviews --do_predict --predict_file=new.csv"
    )
    asked = f"{TUNE} --task=classification --eval_file=dev.csv --predict_file=new.csv --nodo_train"
    tuner.types(f"{asked} --init_checkpoint=runs/reviews --output_dir=again")
    assert results(tuner.folder / "again") == pytest.approx(results(tuner.folder / "runs/reviews"), rel=1e-5)
    assert (tuner.folder / "again/predictions.tsv").read_text() == (
        tuner.folder / "runs/reviews/predictions.tsv"
    ).read_text()
    done = tuner.types(
        f"{asked} --output_dir=runs/reviews --set=options.labels=[boat,music]", status=1, messages=("error: .*",)
    )
    assert "options.labels" in done.err


@pytest.mark.parametrize(
    "command",
    [
        "run_classifier --task_name=MRPC --data_dir=glue --do_train --num_train_epochs=1",
        "run_squad --do_train --train_file=squad.json --num_train_epochs=1 --set=options.doc_stride=16 "
        "--set=options.max_query_length=24",
        "run_finetuning --task=mrpc --data_dir=glue --num_train_epochs=1 --cache_dir=",
    ],
)
def test_a_cased_checkpoint_is_not_lower_cased(person, golden, root, command):
    shutil.copytree(golden / "tf1_bert", person.folder / "cased_L-3_H-32_A-4")
    shutil.copy(golden / "vocab_cased.txt", person.folder / "vocab.txt")  # not beside the checkpoint
    shutil.copytree(root / "tests/fixtures/glue", person.folder / "glue")
    shutil.copy(golden / "squad_v1.json", person.folder / "squad.json")
    line = (
        f"python -m official_bert.{command} --bert_config_file=cased_L-3_H-32_A-4/bert_config.json "
        f"--vocab_file=vocab.txt "
        "--init_checkpoint=cased_L-3_H-32_A-4/bert_model.ckpt --max_seq_length=48 --train_batch_size=4 --output_dir=out"
    )
    done = person.types(f"{line} --do_lower_case=true", status=1, messages=("error: .*",))
    assert (
        "config.tokenizer.do_lower_case is False there, got True" in done.err and not (person.folder / "out").exists()
    )
    person.types(line, messages=("squad.json: .* were cut",))
    assert "do_lower_case: false" in (person.folder / "out/config.yaml").read_text(encoding="utf-8")
    done = person.types(
        f"{PREDICT} --task={'squad' if 'squad' in command else 'glue'} --model=out --do_lower_case=true 'a'",
        status=1,
        messages=("error: .*",),
    )
    assert "--do_lower_case=true: text is not lower-cased for out" in done.err


def test_a_search_predicts_evaluates_and_exports_with_its_best_run(tuner):
    tune = TUNE.replace("--max_seq_length=32 ", "")
    line = (
        f"{tune} --task=classification --train_file=train.csv --eval_file=dev.csv --init_checkpoint=bert {QUICK} "
        "--num_train_epochs=3 --output_dir=search --seeds=2 --vary=options.max_seq_length=8,32"
    )
    done = tuner.types(f"{line} --predict_file=nowhere.csv", status=1, messages=("error: .*",))
    assert "nowhere.csv: no such file" in done.err and not list(tuner.folder.glob("search/*/ckpt*"))
    done = tuner.types(f"{line} --predict_file=new.csv")
    shown = done.out.splitlines()
    best = shown[
        next(number for number, text in enumerate(shown) if text.startswith("best run, by the highest")) + 1
    ].strip()
    assert [text.startswith("best setting, by the highest mean: ") for text in shown].count(True) == 1
    records = json.loads((tuner.folder / "search/search.json").read_text())
    assert best == f"search/{records['best']}" and len(records["runs"]) == 4
    written = (tuner.folder / best / "predictions.tsv").read_text()
    assert len(written.splitlines()) == 13 and "boat" in written and "music" in written
    again = tuner.types(f"{line} --predict_file=new.csv")
    assert "run 1 of 4" not in again.out and (tuner.folder / best / "predictions.tsv").read_text() == written

    evaluated = tuner.types(
        f"{tune} --task=classification --nodo_train --eval_file=dev.csv --predict_file=new.csv --output_dir=search"
    )
    accuracy = records["runs"][records["best"]]["metrics"]["accuracy"]
    assert (
        f"accuracy = {100 * accuracy:.2f} %" in evaluated.out
        and (tuner.folder / best / "predictions.tsv").read_text() == written
    )
    answer = tuner.types(f"{PREDICT} --task=classification --model=search 'the ferry in three'").out
    assert answer.splitlines()[1].split()[0] in ("boat", "music")
    tuner.types("python -m official_bert.run_export --checkpoint=search --output=exported --warmup_batch_sizes=1")
    assert (
        tuner.types(f"{PREDICT} --task=classification --model=exported 'the ferry in three'").out.split()[:7]
        == answer.split()[:7]
    )

    write_csv(tuner.folder / "dev.csv", reviews(40, 77))
    done = tuner.types(line, status=1, messages=("error: .*",))
    assert "search.json: its results are those of another eval; give another --output_dir" in done.err
    for wrong, told in (
        ("--vary=seed=1,2", "expected --seeds"),
        ("--vary=optimizer.beta_1=0.9,0.90", "beta_1-0.9 several times"),
        ("--grid --set=training.steps=5", "config.training.epochs: expected config.training.steps 0 (not 5) with it"),
    ):
        done = tuner.types(f"{line.replace('search', 'other')} {wrong}", status=1, messages=("error: .*",))
        assert told in done.err


def test_a_run_is_another_one_on_other_data(tuner):
    line = f"{TUNE} --task=sst2 --data_dir=glue --init_checkpoint=bert --num_train_epochs=1 --output_dir=out"
    tuner.types(line)
    tuner.types(line)
    shutil.copytree(tuner.folder / "bert", tuner.folder / "other")
    done = tuner.types(line.replace("=bert", "=other"), status=1, messages=("error: .*",))
    assert "--output_dir=out holds a run with another --init_checkpoint, " in done.err
    path = tuner.folder / "glue/SST-2/train.tsv"
    path.write_text(path.read_text().replace("\t1", "\t0", 1))
    done = tuner.types(line, status=1, messages=("error: .*",))
    assert (
        "--output_dir=out holds a run with another content of --train_file (or its file in --data_dir); give another "
        "folder" in done.err
    )
    tuner.types(f"{line} --nodo_train")
    alone = line.replace("--data_dir=glue", "--train_file=glue/SST-2/train.tsv")
    done = tuner.types(f"{alone} --nodo_train", status=1, messages=("error: .*",))
    assert "--output_dir=out: its run held out no part of the training file; expected --eval_file" in done.err


def test_files_are_checked_before_training(tuner):
    line = (
        f"{TUNE} --task=classification --init_checkpoint=bert --train_file=train.csv --output_dir=out "
        f"--num_train_epochs=1"
    )
    glue = (
        "python -m official_bert.run_classifier --data_dir=glue --init_checkpoint=bert --output_dir=out --do_train "
        "--num_train_epochs=1 --max_seq_length=32 --train_batch_size=2 "
    )
    rows = reviews(60, 5)
    write_csv(
        tuner.folder / "holes.csv",
        [row | {"label": "" if number in (1, 7) else row["label"]} for number, row in enumerate(rows)],
    )
    (tuner.folder / "glue/QQP/test.tsv").write_text("id\tquestion1\tquestion2\n0\ta\tb\n1\ta\n", encoding="utf-8")
    shutil.copy(tuner.folder / "glue/SST-2/train.tsv", tuner.folder / "glue/SST-2/dev.tsv")
    for wrong, told in (
        (f"{line} --eval_file=train.csv", "expected held-out data, but 200 of its 200 rows are in the training data"),
        (f"{line} --eval_file=dev.csv --set=options.metrics=[pearson]", "do not fit kind classifier"),
        (f"{line} --eval_file=dev.csv --predict_file=gone.csv", "gone.csv: no such file"),
        (f"{line} --set=options.dev_share=0 --seeds=2", "task classification: no evaluation data given"),
        (
            f"{line} --vary=training.epochs=1 --vary=training.epochs=2",
            "expected all values of training.epochs in one --vary",
        ),
        (
            f"{line} --vary=training.epochs=1,2",
            "training.epochs: expected one value (--set, or its flag) or several (--vary, --grid)",
        ),
        (
            f"{line.replace('train.csv', 'holes.csv')} --eval_file=dev.csv",
            "holes.csv:3: column 'label': expected a label, got ''",
        ),
        (f"{glue} --task_name=QQP --do_predict", "test.tsv:3: expected 3 columns, got 2"),
        (f"{glue} --task_name=SST-2 --do_eval", "expected held-out data, but 4 of its 4 rows are in the training data"),
    ):
        done = tuner.types(wrong, status=1, messages=("error: .*", ".*left out.*", r"\S*python -m .*"))
        assert told in done.err and not list(tuner.folder.glob("out/*.yaml"))
    tuner.types(
        f"{line.replace('train.csv', 'holes.csv')} --eval_file=dev.csv --set=options.missing_label=skip",
        messages=("holes.csv:3: .* left out, as is 1 more",),
    )
    done = tuner.types(
        f"{glue.replace('=out', '=same')} --task_name=SST-2 --do_eval --allow_same_data",
        messages=(".* the results say nothing about other data",),
    )


def answers(person, model, file, more="", task="classification"):
    """Returns what run_predict answers to the rows of a file."""
    person.types(f"{PREDICT} --task={task} --model={model} --input_file={file} --output_file=answers.jsonl {more}")
    return [json.loads(line) for line in (person.folder / "answers.jsonl").read_text(encoding="utf-8").splitlines()]


def test_answers_to_files_of_every_form_with_their_ids(tuner):
    rows = reviews(9, 3)
    write_csv(tuner.folder / "new.csv", rows)
    header = ["id", "review", "label"]
    for name, count, seed in (("train", 60, 0), ("dev", 20, 1), ("ask", 9, 3)):
        lines = [header, *([row["id"], row["text"], row["label"]] for row in reviews(count, seed))]
        (tuner.folder / f"{name}.txt").write_text("".join("|".join(line) + "\n" for line in lines))
    lines = [header, *([row["id"], row["text"], row["label"]] for row in rows)]
    (tuner.folder / "ask.tsv").write_text("".join("\t".join(line) + "\n" for line in lines))
    (tuner.folder / "plain.tsv").write_text("".join(row["text"] + "\n" for row in rows))
    (tuner.folder / "ask.jsonl").write_text(
        "".join(json.dumps({"id": r["id"], "review": r["text"]}) + "\n" for r in rows)
    )
    pq.write_table(
        pa.table({"id": [row["id"] for row in rows], "review": [row["text"] for row in rows]}),
        tuner.folder / "ask.parquet",
    )
    tuner.types(
        f"{TUNE} --task=classification --train_file=train.txt --eval_file=dev.txt --init_checkpoint=bert "
        "--num_train_epochs=1 --set=options.text_column=review --set='options.delimiter=|' --output_dir=runs/reviews"
    )
    tuner.types("python -m official_bert.run_export --checkpoint=runs/reviews --output=exported --warmup_batch_sizes=1")
    wanted = answers(tuner, "runs/reviews", "ask.txt", "--keep_columns=id")
    assert [row["id"] for row in wanted] == [row["id"] for row in rows] and [row["text"] for row in wanted] == [
        row["text"] for row in rows
    ]
    for model in ("runs/reviews", "exported"):
        for file, more in (
            ("ask.tsv", r"--set='options.delimiter=\t'"),
            ("ask.jsonl", ""),
            ("ask.parquet", ""),
            ("new.csv", "--set=options.text_column=text --set=options.delimiter=,"),
        ):
            found = answers(tuner, model, file, f"{more} --keep_columns=id")
            assert [(row["id"], row["text"], row["label"]) for row in found] == [
                (row["id"], row["text"], row["label"]) for row in wanted
            ]
    found = answers(tuner, "runs/reviews", "plain.tsv", "--set=options.delimiter=,")
    assert [row["label"] for row in found] == [row["label"] for row in wanted]
    ask = f"{PREDICT} --task=classification --model=runs/reviews"
    for wrong, told in (
        (f"{ask} --input_file=new.csv", "new.csv: expected a column 'review'"),
        (f"{ask} --input_file=ask.txt --keep_columns=nothing", "expected a column 'nothing'"),
        (f"{ask} --input_file=plain.tsv --keep_columns=id", "plain.tsv has no names of columns review"),
        (f"{ask} --input_file=ask.txt --keep_columns=label", "an answer has a label of its own"),
        (f"{PREDICT} --task=mrcp --model=runs/reviews a", "--task: expected one of"),
        (f"{ask} --input_file=new.csv '--set=options.delimiter=ab'", "options.delimiter: expected one character"),
    ):
        done = tuner.types(wrong, status=1, messages=("error: .*",))
        assert told in done.err, done.err


def test_choices_are_asked_as_json_or_csv(tuner, root):
    tuner.types(
        f"{TUNE} --task=swag --data_dir={root}/tests/fixtures/swag --init_checkpoint=bert --num_train_epochs=1 "
        "--max_seq_length=64 --output_dir=runs/swag --do_predict"
    )
    shutil.copy(root / "tests/fixtures/swag/test.csv", tuner.folder / "ask.csv")
    with open(tuner.folder / "ask.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    (tuner.folder / "ask.jsonl").write_text(
        "".join(
            json.dumps(
                {
                    "text": row["sent1"],
                    "choices": [f"{row['sent2']} {row[f'ending{number}']}".strip() for number in range(4)],
                }
            )
            + "\n"
            for row in rows
        )
    )
    with open(tuner.folder / "runs/swag/predictions.csv", encoding="utf-8") as file:
        wanted = [int(row["prediction"]) for row in csv.DictReader(file)]
    for file in ("ask.csv", "ask.jsonl"):
        assert [row["choice"] for row in answers(tuner, "runs/swag", file, task="swag")] == wanted


def test_the_threshold_for_no_answer_is_tuned_once_and_used_everywhere(tuner, golden):
    shutil.copy(golden / "squad_v2.json", tuner.folder / "dev.json")
    asked = json.loads((tuner.folder / "dev.json").read_text(encoding="utf-8"))
    for article in asked["data"]:
        for paragraph in article["paragraphs"]:
            paragraph["qas"] = [{"id": row["id"], "question": row["question"]} for row in paragraph["qas"]]
    (tuner.folder / "test.json").write_text(json.dumps(asked), encoding="utf-8")
    line = (
        "python -m official_bert.run_squad --init_checkpoint=bert --version_2_with_negative --max_seq_length=64 "
        "--max_query_length=24 --doc_stride=32 --output_dir=runs/squad --num_train_epochs=1 --train_batch_size=8"
    )
    cut = (r".*json: .* were cut", ".*are in .*json too.*")
    tuner.types(
        f"{line} --do_train --train_file=dev.json --do_predict --predict_file=dev.json --allow_same_data", messages=cut
    )
    first = results(tuner.folder / "runs/squad")
    odds = json.loads((tuner.folder / "runs/squad/null_odds.json").read_text())
    tuner.types(f"{line} --do_predict --predict_file=dev.json", messages=cut)
    assert results(tuner.folder / "runs/squad") == pytest.approx(first)  # measured with 2018's threshold, as before
    threshold = first["best_f1_threshold"]
    (stored,) = json.loads((tuner.folder / "runs/squad/tuned.json").read_text())["steps"].values()
    assert stored == {"null_score_diff_threshold": pytest.approx(threshold)}
    done = tuner.types(f"{line} --do_predict --predict_file=test.json", messages=cut)
    assert "tuned in evaluation" in done.out
    written = json.loads((tuner.folder / "runs/squad/predictions.json").read_text())
    assert {key: not answer for key, answer in written.items()} == {
        key: value > threshold for key, value in odds.items()
    }
    tuner.types(f"{line} --do_predict --predict_file=test.json --null_score_diff_threshold=-1000", messages=cut)
    assert not any(json.loads((tuner.folder / "runs/squad/predictions.json").read_text()).values())
    tuner.types(
        "python -m official_bert.run_finetuning --task=squad --output_dir=runs/squad --nodo_train --nodo_eval "
        "--do_predict --predict_file=test.json",
        messages=cut,
    )
    assert json.loads((tuner.folder / "runs/squad/predictions.json").read_text()) == written
    tuner.types(
        "python -m official_bert.run_finetuning --task=squad --output_dir=runs/squad --nodo_train --nodo_eval "
        "--do_predict --predict_file=test.json --set options.null_score_diff_threshold=0.0",
        messages=cut,
    )
    at_zero = json.loads((tuner.folder / "runs/squad/predictions.json").read_text())
    assert {key: not answer for key, answer in at_zero.items()} == {key: value > 0.0 for key, value in odds.items()}
    assert restore_model(str(tuner.folder / "runs/squad"))[0].options["null_score_diff_threshold"] == pytest.approx(
        threshold
    )
    for epochs, kept in ((1, True), (2, False)):  # later weights, which no evaluation has seen, have none
        tuner.types(f"{line.replace('epochs=1', f'epochs={epochs}')} --do_train --train_file=dev.json", messages=cut)
        assert (tuner.folder / "runs/squad/tuned.json").exists() == kept


def test_tagging_parts_of_speech_and_files_with_other_or_no_tags(tuner):
    draw = random.Random(0)
    tags = {"the": "DT", "while": "IN", "ferry": "NN", "it": "PRP", "-": "-LRB-"}
    for name, count in (("train", 80), ("dev", 20)):
        words = [draw.choices(list(tags), k=5) for _ in range(count)]
        (tuner.folder / f"{name}.txt").write_text(
            "\n\n".join("\n".join(f"{word} {tags[word]}" for word in row) for row in words) + "\n"
        )
    (tuner.folder / "new.txt").write_text("the UNSEEN\nferry UNSEEN\n\nit UNSEEN\n")
    tuner.types(
        f"{TUNE} --task=ner --train_file=train.txt --eval_file=dev.txt --predict_file=new.txt --init_checkpoint=bert "
        f"{QUICK} --set=options.scheme=plain --output_dir=runs/pos"
    )
    assert results(tuner.folder / "runs/pos")["tag_accuracy"] == 1.0
    written = [line.split() for line in (tuner.folder / "runs/pos/predictions.conll").read_text().splitlines() if line]
    assert written == [["the", "UNSEEN", "DT"], ["ferry", "UNSEEN", "NN"], ["it", "UNSEEN", "PRP"]]
    done = tuner.types(f"{PREDICT} --task=ner --model=runs/pos 'the ferry'")
    assert [line.split()[:2] for line in done.out.splitlines()[1:]] == [["DT", "the"], ["NN", "ferry"]]

    names = {"Anna": "PER", "Rome": "LOC", "the": "", "while": ""}
    for name, count in (("train", 80), ("dev", 20)):  # IOB1: B only behind another of the same type
        lines = []
        for row in [draw.choices(list(names), k=5) for _ in range(count)]:
            kinds = ["", *(names[word] for word in row)]
            lines += [
                f"{word} " + (f"{'B' if before == kind else 'I'}-{kind}" if kind else "O")
                for word, before, kind in zip(row, kinds, kinds[1:])
            ] + [""]
        (tuner.folder / f"{name}.txt").write_text("\n".join(lines))
    tuner.types(
        f"{TUNE} --task=ner --train_file=train.txt --eval_file=dev.txt --predict_file=new.txt --init_checkpoint=bert "
        f"{QUICK} --output_dir=runs/iob2",
        messages=("new.txt:1: .* without gold tags",),
    )
    found = results(tuner.folder / "runs/iob2")
    assert found["f1"] > 0.95 and found["tag_accuracy"] > 0.95  # I-PER in the file is B-PER in the model's scheme
