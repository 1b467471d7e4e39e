"""An encoder and a decoder: attention against NumPy, weights that are shared, caches, folders of transformers."""

import dataclasses
import functools
import json
import pathlib
import subprocess

import numpy as np
import pytest
from needed_tools import TORCH, needs_torch

from official_bert.config import ModelConfig
from official_bert.interface.predictor import Predictor
from official_bert.interface.pretrained import load_model
from official_bert.models.checkpoints import initialize_from
from official_bert.models.encoder import encoder_settings, make_encoder, weights_by_name
from official_bert.models.encoder_decoder.model import EncoderDecoder
from official_bert.models.first_weights import draw_first_weights
from official_bert.models.interchange import formats
from official_bert.models.interchange.names import NameTable
from official_bert.models.interchange.stored_models import StoredModel
from official_bert.models.pretrainer import Pretrainer

SMALL = ModelConfig(
    vocab_size=30,
    hidden_size=8,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=14,
    initializer_range=0.4,
    hidden_act="gelu_erf",
)
WIDER = dataclasses.replace(SMALL, hidden_size=12, num_hidden_layers=1)
ROBERTA = dataclasses.replace(SMALL, first_position=2, type_vocab_size=1, masked_lm_act="gelu_erf")
GENERATION = dataclasses.replace(SMALL, type_vocab_size=0)
ALBERT = dataclasses.replace(SMALL, embedding_size=4, layer_groups=1)
SEARCH = {"decoder_start_token_id": 2, "eos_token_id": [3], "pad_token_id": 0, "max_length": 9}
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0]], np.int32)
ROWS = {
    "input_ids": np.random.default_rng(0).integers(4, 30, MASK.shape).astype(np.int32) * MASK,
    "input_mask": MASK,
    "segment_ids": MASK * 0,
}
TARGETS = {"target_ids": np.random.default_rng(1).integers(4, 30, (3, 6)).astype(np.int32)}


def make(encoder=SMALL, decoder=SMALL, transforms=True, seed=1, **search):
    """A model with random weights; decoder None: with the encoder's."""
    settings = {"decoder": decoder and encoder_settings(decoder), "transforms": transforms, "search": SEARCH | search}
    model = EncoderDecoder.make(encoder, settings)
    draw_first_weights(model, seed)
    rng = np.random.default_rng(seed)
    for name, weight in weights_by_name(model).items():  # biases and norms say something too
        if name.endswith(("bias", "gamma", "beta")):
            weight.assign(weight + rng.normal(0, 0.2, weight.shape))
    return model


KINDS = {
    "separate": (SMALL, SMALL, True),
    "shared": (SMALL, None, True),
    "wider": (SMALL, WIDER, True),
    "roberta": (ROBERTA, ROBERTA, True),
    "generation": (GENERATION, GENERATION, False),
    "shared_albert": (ALBERT, None, True),
}


@functools.cache
def made(kind="separate"):
    """A model of a kind, for tests that leave its weights as they are."""
    return make(*KINDS[kind])


def stored_of(model, decoder=SMALL):
    return StoredModel(
        origin="a test",
        weights={name: np.array(weight) for name, weight in weights_by_name(model).items()},
        table=NameTable([]),
        config=model.encoder.config,
        head="decoder",
        objective_options={
            "generator": "decoder",
            "decoder": decoder and encoder_settings(decoder),
            "shared": decoder is None,
            "head_transform": model.settings["transforms"],
            "search": model.settings["search"],
        },
    )


def test_without_what_it_sees_of_the_encoder_a_decoder_is_a_left_to_right_encoder():
    model = make()
    weights = weights_by_name(model)
    for name, weight in weights.items():
        if name.startswith("decoder/cross_"):
            weight.assign(np.ones(weight.shape) if name.endswith("gamma") else np.zeros(weight.shape))
        if name.endswith("attention_LayerNorm/gamma"):
            weight.assign(np.ones(weight.shape))
        if name.endswith("attention_LayerNorm/beta"):
            weight.assign(np.zeros(weight.shape))
    alone = make_encoder(dataclasses.replace(SMALL, attention="left_to_right"))
    for name, weight in weights_by_name(alone).items():
        if f"decoder/{name}" in weights:
            weight.assign(weights[f"decoder/{name}"])
    ids = TARGETS["target_ids"]
    rows, _ = model.decoder.extend(ids, model.remember(ROWS))
    expected = alone({"input_ids": ids, "input_mask": ids * 0 + 1, "segment_ids": ids * 0})["sequence_output"]
    np.testing.assert_allclose(rows, expected, atol=1e-5)


def test_the_second_attention_is_that_of_numpy_over_real_rows_of_the_source():
    model = made()
    cross = model.decoder.cross_attentions[0]
    weights = {name: np.array(weight, float) for name, weight in weights_by_name(model).items()}
    rows = np.array(model.encoder(ROWS)["sequence_output"], float)
    x = np.random.default_rng(2).normal(size=(3, 6, 8))
    memory = model.decoder.remember(rows.astype(np.float32), MASK)
    got = cross(x.astype(np.float32), memory.layers[0], memory.mask)

    def heads(part, values):
        of = f"decoder/cross_0/attention/{part}"
        return np.einsum("bsd,dnh->bnsh", values, weights[f"{of}/kernel"]) + weights[f"{of}/bias"][None, :, None]

    scores = np.einsum("bnqh,bnsh->bnqs", heads("query", x), heads("key", rows)) / 2  # sqrt(4)
    scores = np.where(MASK[:, None, None] > 0, scores, -np.inf)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    context = np.einsum("bnqs,bnsh->bqnh", shares / shares.sum(-1, keepdims=True), heads("value", rows))
    of = "decoder/cross_0/attention/output"
    summed = x + np.einsum("bqnh,nhd->bqd", context, weights[f"{of}/kernel"]) + weights[f"{of}/bias"]
    normed = (summed - summed.mean(-1, keepdims=True)) / summed.std(-1, keepdims=True)
    normed = normed * weights["decoder/cross_0/LayerNorm/gamma"] + weights["decoder/cross_0/LayerNorm/beta"]
    np.testing.assert_allclose(got, normed, atol=1e-5)


def test_a_shared_decoder_has_the_encoders_weights_and_the_others_have_their_own():
    shared, separate = (weights_by_name(made(kind)) for kind in ("shared", "separate"))
    own = {name.split("/")[1] for name in shared if name.startswith("decoder/")}
    assert own == {"cross_0", "cross_1", "masked_lm"}
    assert {*shared} < {*separate}
    assert "decoder/embeddings/word_embeddings" in separate
    assert "decoder/projection/kernel" in weights_by_name(made("wider"))
    assert "decoder/masked_lm/transform/kernel" not in weights_by_name(made("generation"))


@pytest.mark.parametrize(
    "kind",
    [*(pytest.param(kind, marks=pytest.mark.slow) for kind in ("shared_albert", "roberta", "generation")), "wider"],
)
def test_a_search_with_a_cache_writes_what_whole_passes_say_and_a_text_alone_the_same(kind):
    model = made(kind)
    written = model.generate(ROWS)
    assert written["sequences"].shape[1] <= 9
    ids = written["sequences"]
    logits = np.array(model({**ROWS, "target_ids": ids.astype(np.int32)})["logits"])
    for number, text in enumerate(ids):
        ends = np.flatnonzero(text[1:] == 3)
        last = ends[0] + 2 if len(ends) else len(text)
        np.testing.assert_array_equal(logits[number, : last - 1].argmax(-1), text[1:last])
        assert not text[last:].any()
        logs = logits[number] - np.log(np.exp(logits[number]).sum(-1, keepdims=True))
        total = sum(logs[at, text[at + 1]] for at in range(last - 1))
        np.testing.assert_allclose(written["scores"][number], total, rtol=1e-4)
    several = model.generate(ROWS, num_beams=3, num_return_sequences=2)
    for number in range(3):
        row = {name: values[number : number + 1] for name, values in ROWS.items()}
        alone = model.generate(row)
        np.testing.assert_array_equal(alone["sequences"][0], ids[number, : alone["sequences"].shape[1]])
        alone = model.generate(row, num_beams=3, num_return_sequences=2)
        length = alone["sequences"].shape[1]
        np.testing.assert_array_equal(alone["sequences"], several["sequences"][2 * number : 2 * number + 2, :length])
        np.testing.assert_allclose(alone["scores"], several["scores"][2 * number : 2 * number + 2], rtol=1e-4)


def test_beams_score_a_text_as_whole_passes_do_and_a_beginning_is_kept():
    model = made()
    begun = TARGETS["target_ids"][:, :2]
    written = model.generate({**ROWS, "target_ids": begun}, num_beams=4, length_penalty=0.5)
    ids = written["sequences"]
    np.testing.assert_array_equal(ids[:, :2], begun)
    logits = np.array(model({**ROWS, "target_ids": ids.astype(np.int32)})["logits"])
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    for number, text in enumerate(ids):
        ends = np.flatnonzero(text[2:] == 3)
        last = ends[0] + 3 if len(ends) else len(text)
        total = sum(logs[number, at, text[at + 1]] for at in range(1, last - 1))
        np.testing.assert_allclose(written["scores"][number], total / (last - 2) ** 0.5, rtol=1e-4)


def test_padding_changes_nothing_and_a_word_sees_those_before_it_only():
    for kind in ("separate", "roberta"):
        model = made(kind)
        pad = 1 if kind == "roberta" else 0
        targets = np.array([[2, 7, 8, 9, pad, pad]] * 3, np.int32)
        before = np.array(
            model({**ROWS, "target_ids": targets, "target_mask": (targets != pad).astype(np.int32)})["logits"]
        )
        short = np.array(model({**ROWS, "target_ids": targets[:, :4]})["logits"])
        np.testing.assert_allclose(before[:, :4], short, atol=1e-5)
        targets[:, 3] = 11
        after = np.array(model({**ROWS, "target_ids": targets[:, :4]})["logits"])
        np.testing.assert_array_equal(after[:, :3], short[:, :3])
        assert np.abs(after[:, 3] - short[:, 3]).max() > 1e-3


@pytest.mark.parametrize("kind", ["separate", "shared", "wider", "roberta", "generation"])
def test_a_folder_of_transformers_holds_the_same_model(tmp_path, kind):
    encoder, decoder, transforms = KINDS[kind]
    model = make(encoder, decoder, transforms, no_repeat_ngram_size=2, num_beams=2)
    formats.write(stored_of(model, decoder), "hugging_face", str(tmp_path / "model"))
    again = load_model(tmp_path / "model")
    assert again.settings == model.settings
    inputs = {**ROWS, **TARGETS}
    np.testing.assert_array_equal(again(inputs)["logits"], model(inputs)["logits"])
    stored = formats.read(str(tmp_path / "model"))
    assert (stored.head, stored.unknown) == ("decoder", [])
    names = formats.stored_models.read_safetensors(str(tmp_path / "model/model.safetensors"))[0]
    part = {"roberta": "roberta"}.get(kind, "bert")
    assert f"decoder.{part}.encoder.layer.0.crossattention.self.query.weight" in names
    assert f"decoder.{part}.embeddings.word_embeddings.weight" in names  # transformers 5 does not know who shares
    assert "encoder.embeddings.word_embeddings.weight" in names


@needs_torch
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["separate", "shared", "wider", "roberta"])
def test_transformers_writes_the_same_words_from_the_folder(tmp_path, kind):
    encoder, decoder, transforms = KINDS[kind]
    model = make(encoder, decoder, transforms)
    formats.write(stored_of(model, decoder), "hugging_face", str(tmp_path / "model"))
    np.savez(tmp_path / "inputs.npz", **ROWS)
    script = pathlib.Path(__file__).parents[2] / "benchmarks/generate_hugging_face.py"
    searches = [{}, {"num_beams": 3, "num_return_sequences": 2, "max_length": 12}]
    done = subprocess.run(
        [TORCH, str(script), str(tmp_path / "model"), str(tmp_path / "inputs.npz")],
        input="".join(json.dumps({"rows": 3, **how}) + "\n" for how in searches),
        capture_output=True,
        text=True,
        check=True,
    )
    for how, line in zip(searches, done.stdout.splitlines()[1:], strict=True):
        assert model.generate(ROWS, **how)["sequences"].tolist() == json.loads(line)[2]


@pytest.mark.slow
def test_a_folder_answers_texts_with_its_own_search(tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxy"]
    model = make(no_repeat_ngram_size=1, num_beams=2, eos_token_id=[3])
    stored = dataclasses.replace(stored_of(model), vocab=words, do_lower_case=True)
    formats.write(stored, "hugging_face", str(tmp_path / "model"))
    answer = Predictor(tmp_path / "model")("a b c")
    ids = np.array([[2, *map(words.index, "abc"), 3]], np.int32)
    written = model.generate({"input_ids": ids, "input_mask": ids * 0 + 1, "segment_ids": ids * 0})
    tokens = [words[index] for index in written["sequences"][0][1:]]
    assert answer["tokens"][: len(tokens)] == tokens
    assert answer["answer"] == " ".join(tokens).partition(" [SEP]")[0]
    assert answer["score"] == pytest.approx(written["scores"][0], rel=1e-4)


def test_shared_weights_are_read_from_files_that_hold_them_once_and_a_name_in_the_file_wins(tmp_path):
    from safetensors.numpy import load_file, save_file

    model = made("shared")
    formats.write(stored_of(model, None), "hugging_face", str(tmp_path / "model"))
    path = str(tmp_path / "model/model.safetensors")
    tensors = load_file(path)
    once = {
        name: value
        for name, value in tensors.items()
        if "crossattention" in name or not name.startswith("decoder.bert.")
    }
    assert len(once) < len(tensors)
    save_file(once, path)
    inputs = {**ROWS, **TARGETS}
    again = load_model(tmp_path / "model")
    assert again.settings["decoder"] is None
    np.testing.assert_array_equal(again(inputs)["logits"], model(inputs)["logits"])
    name = "decoder.bert.encoder.layer.1.output.dense.bias"
    save_file(once | {name: tensors[name] + 1}, path)
    other = load_model(tmp_path / "model")
    assert other.settings["decoder"] is not None
    weights = weights_by_name(other)
    np.testing.assert_array_equal(weights["decoder/layer_1/output/bias"], weights["layer_1/output/bias"] + 1)
    np.testing.assert_array_equal(weights["decoder/layer_0/output/bias"], weights["layer_0/output/bias"])


def test_two_checkpoints_or_one_give_the_first_weights(tmp_path):
    checkpoints = {}
    for name, config in {"encoder": SMALL, "decoder": dataclasses.replace(SMALL, vocab_size=20)}.items():
        pretrainer = Pretrainer.make(config, {"next_sentence": False})
        draw_first_weights(pretrainer, 3)
        weights = {key: np.array(weight) for key, weight in weights_by_name(pretrainer).items()}
        stored = StoredModel(origin=name, weights=weights, table=NameTable([]), config=config, head="pretraining")
        formats.write(stored, "hugging_face", str(tmp_path / name))
        checkpoints[name] = weights
    model = make()
    result = initialize_from(model, str(tmp_path / "encoder"))
    weights = weights_by_name(model)
    for name in ("embeddings/word_embeddings", "layer_1/attention/query/kernel", "masked_lm/output_bias"):
        np.testing.assert_array_equal(
            np.reshape(weights[f"decoder/{name}"], -1), np.reshape(checkpoints["encoder"][name], -1)
        )
    assert {name.split("/")[1] for name in result.new if not name.startswith("pooler")} == {"cross_0", "cross_1"}
    assert not result.unused
    other = make(decoder=dataclasses.replace(SMALL, vocab_size=20))
    other.decoder_checkpoint = str(tmp_path / "decoder")
    initialize_from(other, str(tmp_path / "encoder"))
    weights = weights_by_name(other)
    for name, checkpoint in (("", "encoder"), ("decoder/", "decoder")):
        np.testing.assert_array_equal(
            weights[f"{name}embeddings/word_embeddings"], checkpoints[checkpoint]["embeddings/word_embeddings"]
        )
    wrong = make(decoder=WIDER)
    wrong.decoder_checkpoint = str(tmp_path / "decoder")
    with pytest.raises(ValueError, match="a model of another size: decoder/"):
        initialize_from(wrong, str(tmp_path / "encoder"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"is_decoder": False},
            "decoder: expected the configuration of a model with add_cross_attention and is_decoder, got {",
        ),
        (
            {"add_cross_attention": False},
            "decoder: expected the configuration of a model with add_cross_attention and is_decoder, got {",
        ),
        ({"model_type": "t5"}, "decoder: expected a BERT model or one of its family"),
        ({"model_type": ["t5"]}, "decoder: model_type: expected a name, got"),
    ],
)
def test_a_folder_whose_decoder_does_not_see_the_encoder_is_refused_in_one_line(tmp_path, change, message):
    formats.write(stored_of(made()), "hugging_face", str(tmp_path / "model"))
    path = tmp_path / "model/config.json"
    values = json.loads(path.read_text())
    values["decoder"] |= change
    path.write_text(json.dumps(values))
    with pytest.raises(ValueError, match=message) as error:
        load_model(tmp_path / "model")
    assert str(path) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"max_length": 16}, "max_length: expected 2 to 15, one more than the decoder's positions, got 16"),
        ({"max_new_tokens": 15}, "max_length: expected 2 to 15, one more than the decoder's positions, got 16"),
        ({"max_length": 1}, "max_length: expected 2 to 15"),
        ({"eos_token_id": 30}, ": expected tokens below 30, the decoder's words, got 30"),
        ({"eos_token_id": [3, 31]}, ": expected tokens below 30, the decoder's words, got 31"),
        ({"num_beams": 300}, "num_beams: expected 1 to 256, got 300"),
    ],
)
def test_searches_beyond_the_limits_are_refused_in_one_line(how, message):
    with pytest.raises(ValueError, match=rf"^search\.?{message}"):
        made().generate(ROWS, **how)


def test_layers_that_see_tokens_otherwise_are_no_decoder_and_targets_end_at_the_last_position():
    with pytest.raises(ValueError, match="^decoder: .* got rotary 10000.0"):
        make(decoder=dataclasses.replace(SMALL, rotary=10000.0))
    with pytest.raises(ValueError, match="target_ids: expected at most the decoder's 14 positions, got 15"):
        made()({**ROWS, "target_ids": np.ones((3, 15), np.int32)})
