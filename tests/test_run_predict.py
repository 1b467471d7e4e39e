import json

import pytest
import yaml
from commands import run_here
from made_pretraining import make_config

from official_bert.config import to_dict
from official_bert.input_files import read_rows
from official_bert.models import checkpoints
from official_bert.predictor import Predictor
from official_bert.tasks.loading import load_task, restore_for_inference

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "river", "runs", "by", "old", "stone", "##s", "."]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Writes the folder of a training run whose model prefers a known word at every blank."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    config = to_dict(make_config(model={"vocab_size": len(WORDS)}, tokenizer={"vocab_file": str(folder / "vocab.txt")}))
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    from official_bert.config import load_config
    model = load_task(load_config(str(folder / "config.yaml"))).build_model()
    bias = [0.0] * len(WORDS)
    bias[WORDS.index("river")], bias[WORDS.index("stone")] = 40.0, 38.0
    model.masked_lm.output_bias.assign(bias)
    model.masked_lm.layer_norm.gamma.assign([0.0] * 16)  # the bias alone decides
    checkpoints.weights_checkpoint(model).write(str(folder / "ckpt-1"))
    (folder / "checkpoint").write_text('model_checkpoint_path: "ckpt-1"\nall_model_checkpoint_paths: "ckpt-1"\n')
    return folder


def test_blanks_are_filled_in_the_order_of_the_texts(folder):
    predictor = Predictor(str(folder))
    texts = ["The old [MASK] runs by the old old old river.", "[MASK].", "No blank.", "The [MASK] by the [MASK]"]
    answers = predictor.answer([{"text": text} for text in texts], batch_size=2)
    found = [[words for words in answer["tokens"] if any(words)] for answer in answers]
    assert [len(blanks) for blanks in found] == [1, 1, 0, 2]
    assert all(words[:2] == ["river", "stone"] for blanks in found for words in blanks)
    assert answers[1]["probabilities"][0][0] == pytest.approx(1 / (1 + 2.718281828 ** -2), abs=1e-4)


def test_a_checkpoint_in_the_folder_is_a_model_too(folder):
    task, model = restore_for_inference(str(folder / "ckpt-1"))
    assert task.config.tokenizer.vocab_file == str(folder / "vocab.txt")
    assert float(model.masked_lm.output_bias.value[WORDS.index("river")]) == 40.0


def predict(*arguments, stdin=""):
    return run_here("-m", "official_bert.run_predict", *arguments, typed=stdin)


def test_the_command_prints_the_five_best_words(folder):
    done = predict("--task=fill_mask", f"--model={folder}", "The [MASK] runs.")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "The [MASK] runs." and len(lines) == 6
    assert lines[1].split()[1] == "river" and float(lines[1].split()[0]) == 0.881


def test_the_command_reads_standard_input_and_writes_json_lines(folder, tmp_path):
    output = tmp_path / "answers.jsonl"
    done = predict("--task=fill_mask", f"--model={folder}", f"--output_file={output}",
                   stdin='{"text": "The [MASK]."}\nold [MASK]\n')
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert [row["text"] for row in rows] == ["The [MASK].", "old [MASK]"]
    assert all(row["tokens"][0][0] == "river" for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "told"), [
    (("--model=/nowhere", "x"), "/nowhere"), (("--input_file=none.txt",), "none.txt: no such file"),
    (("x", "--input_file=none.txt"), "--input_file=none.txt: expected no texts as arguments beside it, got 'x'"),
    (("--task=gleu", "x"), "--task: expected one of ["),
    (("--task=squad", "x"), "not a model for --task=squad; it gives ['probabilities', 'tokens', 'truncated']")])
def test_a_mistake_is_one_line(folder, arguments, told):
    done = predict("--task=fill_mask", f"--model={folder}", *arguments)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert told in next(line for line in done.stderr.splitlines() if line.startswith("error: "))


def test_rows_are_columns_or_json_and_a_wrong_one_is_named():
    names = ("question", "context")
    lines = ["Who?\tMe.", "", '{"question": "a", "context": "b"}']
    assert list(read_rows((), "f.tsv", names, lines)) == [
        {"question": "Who?", "context": "Me."}, {"question": "a", "context": "b"}]
    with pytest.raises(ValueError, match="f.tsv:2: expected question TAB context, got 1 columns"):
        list(read_rows((), "f.tsv", names, ["a\tb", "c"]))
    with pytest.raises(ValueError, match="f.jsonl:1: not valid JSON"):
        list(read_rows((), "f.jsonl", ("text",), ["{oops"]))
