"""Files beside models of other runtimes: `tokenizers` and ONNX Runtime alone give the same vectors and labels."""

import json
import subprocess
import sys

import made_formats
import numpy as np
import pytest
import tokenizers

from official_bert.interface.predictor import Predictor
from official_bert.serving.formats.companions import word_pieces
from official_bert.serving.loading import load_exported
from official_bert.text import loading
from official_bert.text.tokenization import FullTokenizer

TEXTS = [
    "the youngest apprentice borrowed the greenhouse thermometer",
    "Señora Núñez met the surveyor, near Brno!",
    "中国 price e\u0301t",
    "",
    "word " * 60,
]

# What runs without us and without TensorFlow: a folder; texts and answers as JSON.
SCRIPT = """
import json, sys
for name in ("tensorflow", "official_bert", "transformers"):
    sys.modules[name] = None  # an import of it fails
import numpy as np
import onnxruntime
import tokenizers
folder, texts = sys.argv[1], json.loads(sys.stdin.read())
tokenizer = tokenizers.Tokenizer.from_file(f"{folder}/tokenizer.json")
session = onnxruntime.InferenceSession(f"{folder}/model.onnx")
answers = []
for text in texts:
    row = tokenizer.encode(text)
    inputs = {"input_ids": row.ids, "input_mask": row.attention_mask, "segment_ids": row.type_ids}
    feed = {entry.name: np.array([inputs[entry.name]], np.int32) for entry in session.get_inputs()}
    outputs = dict(zip([entry.name for entry in session.get_outputs()], session.run(None, feed)))
    answers.append({name: value[0].tolist() for name, value in outputs.items()})
print(json.dumps(answers))
"""


def answers_of(folder):
    """The answers of a process that imports neither TensorFlow nor this package."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder)],
        input=json.dumps(TEXTS),
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("lower_case", [True, False])
def test_tokenizer_json_gives_the_ids_of_2018s_tokenizer(golden, lower_case):
    vocab_file = str(golden / "vocab_uncased.txt")
    values = word_pieces(loading.entries(vocab_file), lower_case, 24)
    library, ours = tokenizers.Tokenizer.from_str(json.dumps(values)), FullTokenizer(vocab_file, lower_case)
    for text in (*TEXTS, "x" * 150, "x" * 201):
        tokens = ["[CLS]", *ours.tokenize(text)[:22], "[SEP]"]
        assert library.encode(text).tokens == tokens and library.encode(text).type_ids == [0] * len(tokens)
    pair = library.encode("the surveyor", "met the apprentice")
    first, second = ours.tokenize("the surveyor"), ours.tokenize("met the apprentice")
    assert pair.tokens == ["[CLS]", *first, "[SEP]", *second, "[SEP]"]
    assert pair.type_ids == [0] * (len(first) + 2) + [1] * (len(second) + 1)


@pytest.mark.slow
def test_other_programs_give_the_vectors_and_the_files_say_how(golden, tmp_path):
    served, config = made_formats.make("retrieval", str(golden / "vocab_uncased.txt"), query_prompt="query: ")
    made_formats.write(served, config, tmp_path, ("saved_model", "onnx", "openvino"))
    wanted = load_exported(str(tmp_path))(text=TEXTS)["embedding"]
    found = [answer["embedding"] for answer in answers_of(tmp_path / "onnx" / "1")]
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    for folder in (tmp_path / "onnx" / "1", tmp_path / "openvino" / "1"):
        values = {name: json.loads((folder / f"{name}.json").read_text()) for name in ("config", "modules")}
        assert values["config"]["model_type"] == "bert" and values["config"]["hidden_size"] == config.model.hidden_size
        kinds = [module["type"].rpartition(".")[2] for module in values["modules"]]
        assert kinds[:2] == ["Transformer", "Pooling"] and ("Normalize" in kinds) == served.normalize
        pooling = json.loads((folder / "1_Pooling" / "config.json").read_text())
        assert pooling[f"pooling_mode_{'mean_tokens' if served.pooling == 'mean' else 'cls_token'}"] is True
        prompts = json.loads((folder / "config_sentence_transformers.json").read_text())["prompts"]
        assert prompts["query"] == "query: "
        assert json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"] == 48


@pytest.mark.slow
def test_other_programs_find_the_labels_of_a_classifier(golden, tmp_path):
    served, config = made_formats.make("classification", str(golden / "vocab_uncased.txt"))
    made_formats.write(served, config, tmp_path, ("saved_model", "onnx"))
    folder = tmp_path / "onnx" / "1"
    labels = json.loads((folder / "config.json").read_text())["id2label"]
    wanted = [answer["label"] for answer in Predictor(tmp_path)(TEXTS)]
    found = [labels[str(int(np.argmax(answer["probabilities"])))] for answer in answers_of(folder)]
    assert found == wanted and not (folder / "modules.json").exists()
