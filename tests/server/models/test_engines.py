"""`serve --engine`: another runtime computes the model, and every answer stays the SavedModel's."""

import concurrent.futures
import contextlib
import json
import pathlib
import shutil

import made_formats
import made_serving
import numpy as np
import pytest
import tensorflow as tf

from official_bert.runtimes import comparison
from official_bert.runtimes.engines import ENGINES, PortableModel
from official_bert.server.models import engine_choice, engine_servable
from official_bert.server.models.engine_servable import use_engine
from official_bert.server.models.servable import Servable
from official_bert.server.server import ServerOptions
from official_bert.server.server_config import ServedModelConfig
from official_bert.server.statuses import RequestError

LIMITS = {"max_seq_length": 8, "vocab_size": 9, "type_vocab_size": 2}


def export(name, golden, output, formats=("saved_model", "onnx")):
    served, config = made_formats.make(name, str(golden / "vocab_uncased.txt"))
    made_formats.write(served, config, output, formats)
    return served


@contextlib.contextmanager
def loaded(folder, form, engine):
    """A model's version as the server has it, and what was said of its engine."""
    place = str(pathlib.Path(folder) / form / "1")
    servable = Servable("model", 1, place)
    try:
        yield servable, use_engine(servable, place, engine)
    finally:
        servable.close()


def requests(inputs):
    """Requests of texts: all at once, each alone, and none."""
    rows = made_formats.rows_for(inputs)
    if inputs.keys() == {"text"}:
        rows[1:1] = [{"text": text + " [MASK] of [MASK]"} for text in made_formats.TEXTS]
    columns = {name: np.char.encode([row[name] for row in rows], "utf-8").astype(object) for name in inputs}
    yield from (
        {name: value[part] for name, value in columns.items()}
        for part in (slice(None), slice(1), slice(1, 2), slice(0))
    )


def compare(signature, inputs):
    expected, computed = signature.run_graph(inputs), signature.run(inputs)
    assert expected.keys() == computed.keys()
    for name, value in expected.items():
        assert computed[name].dtype == value.dtype and computed[name].shape == value.shape, name
        if value.dtype.kind == "f":
            np.testing.assert_allclose(computed[name], value, atol=2e-5, rtol=2e-5, err_msg=name)
        else:
            assert computed[name].tolist() == value.tolist(), name


@pytest.mark.slow
@pytest.mark.parametrize("name", made_formats.CASES)
def test_every_head_answers_texts_alike_by_every_engine(name, golden, tmp_path):
    export(name, golden, tmp_path, ("saved_model", *ENGINES))
    for engine in ENGINES:
        with loaded(tmp_path, "text", engine) as (servable, said):
            assert said.startswith("serving_default") and f"by {engine}, within" in said
            signature = servable.signature("")
            assert signature.computed_by is not None
            for inputs in requests(signature.inputs):
                compare(signature, inputs)
        with loaded(tmp_path, "ids", engine) as (servable, _):
            assert servable.signature("").computed_by is not None


class Halved(tf.Module):
    """A SavedModel of two parts around a sum: numbers of words, in groups of one or two texts."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "text")], autograph=False)
    def whole(self, text):
        return {"words": tf.cast(tf.strings.split(text).row_lengths(), tf.float32), "text": text}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "text")], autograph=False)
    def prepare(self, text):
        lengths = tf.cast(tf.strings.split(text).row_lengths(), tf.int32)
        rows = tf.sequence_mask(lengths, dtype=tf.int32)
        count = tf.size(lengths)
        return {
            "rows_input_mask": rows,
            "whole_places": rows[:, :1],
            "order": tf.range(count)[::-1],
            "lengths": lengths,
            "sizes": tf.concat([tf.fill([count // 2], 2), tf.fill([count % 2], 1)], 0),
            "state_0": text,
        }

    @tf.function(
        input_signature=[tf.TensorSpec([None], tf.string, "state_0"), tf.TensorSpec([None], tf.float32, "output_sum")],
        autograph=False,
    )
    def finish(self, state_0, output_sum):
        return {"words": output_sum, "text": state_0}


class Sum(PortableModel):
    """Adds up rows, wrong by `error`; knows what it was given."""

    def __init__(self, error=0.0):
        self.error, self.shapes = error, []

    def run(self, inputs):
        self.shapes.append([inputs["input_mask"].shape, inputs["places"].shape])
        return {"sum": inputs["input_mask"].sum(axis=1).astype(np.float32) + np.float32(self.error)}


def test_a_signature_is_computed_by_its_two_parts_with_an_engine_between_them(tmp_path, monkeypatch):
    module, place = Halved(), tmp_path / "text" / "1"
    tf.saved_model.save(
        module,
        str(place),
        signatures={"serving_default": module.whole, "prepare": module.prepare, "finish": module.finish},
    )
    servable = Servable("model", 1, str(place))
    signature, text = servable.signature(""), np.array([b"a b c", b"", b"d", b"e f", b"g"], object)
    assert [*servable.signatures] == [*servable.definitions] == ["serving_default"]  # no client sees the others
    with pytest.raises(
        ValueError,
        match="onnx/1, which run_export --format=saved_model,onnx writes beside .*text/1, got no such folder",
    ):
        use_engine(servable, str(place), "onnx")
    (tmp_path / "onnx" / "1").mkdir(parents=True)
    (tmp_path / "onnx" / "1" / "model.json").write_text("{}")
    for error in (2e-5, float("nan")):
        monkeypatch.setattr(engine_servable, "load_engine", lambda *_, wrong=error: (Sum(wrong), {"limits": LIMITS}))
        with pytest.raises(
            ValueError,
            match=r"onnx/1: --engine=onnx: expected the answers of the SavedModel within 1e-05, got words with",
        ):
            use_engine(servable, str(place), "onnx")
        assert signature.computed_by is None
    engine = Sum(5e-6)
    monkeypatch.setattr(engine_servable, "load_engine", lambda *_: (engine, {"limits": LIMITS}))
    assert use_engine(servable, str(place), "onnx") == "serving_default by onnx, within 5.0e-06 of the SavedModel"
    engine.shapes.clear()
    answer = signature.run({"text": text})
    assert engine.shapes == [[(2, 2), (2, 1)], [(2, 1), (2, 1)], [(1, 3), (1, 1)]]  # a group is cut to its longest row
    np.testing.assert_allclose(answer["words"], [3, 0, 1, 2, 1], atol=1e-5)
    assert answer["text"].tolist() == text.tolist()
    with pytest.raises(RequestError, match="timeout exceeded"):
        signature.run({"text": text}, deadline=1.0)
    for few in (text[:1], text[:0]):
        assert signature.run({"text": few})["text"].tolist() == few.tolist()
    servable.close()
    with pytest.raises(
        ValueError,
        match="--engine=onnx: expected a SavedModel with the signatures prepare and finish, which run_export",
    ):
        use_engine(servable, str(place), "onnx")  # which has none any more


@pytest.mark.slow
def test_an_engine_computes_rows_in_groups_and_refuses_what_the_savedmodel_refuses(golden, tmp_path):
    export("classification", golden, tmp_path)
    with loaded(tmp_path, "ids", "onnx") as (servable, said):
        assert said.startswith("serving_default by onnx, within")
        # no client sees the others
        assert sorted(servable.signatures) == sorted(servable.definitions) == ["examples", "serving_default"]
        signature, run = servable.signature(""), servable.signature("").computed_by
        sizes, engine = [], run.engine.run
        run.engine.run = lambda rows: (sizes.append(rows["input_ids"].shape), engine(rows))[1]
        draw = np.random.default_rng(1)
        lengths = np.array([3, 48, 4, 47, *[5] * 20])
        mask = (np.arange(48) < lengths[:, None]).astype(np.int32)
        rows = {
            "input_ids": draw.integers(0, 3000, mask.shape).astype(np.int32) * mask,
            "input_mask": mask,
            "segment_ids": 0 * mask,
        }
        compare(signature, rows)
        assert sizes == [(2, 48), (22, 5)]  # short rows do not pay for long ones
        with pytest.raises(RequestError, match="input_mask: expected numbers of 0 to 1, got"):
            signature.run({**rows, "input_mask": mask + 1})


@pytest.mark.slow
def test_a_model_with_other_weights_does_not_load(golden, tmp_path):
    served, config = made_formats.make("ner", str(golden / "vocab_uncased.txt"))
    made_formats.write(served, config, tmp_path, ("saved_model", "onnx"))
    served.model.tagger.output_bias.assign_add([0.0, 0.0, 0.0, 1e-3, 0.0])
    made_formats.write(served, config, tmp_path / "other", ("onnx",))
    shutil.rmtree(tmp_path / "onnx")
    shutil.copytree(tmp_path / "other" / "onnx", tmp_path / "onnx")
    with (
        pytest.raises(
            ValueError, match=r"--engine=onnx: expected the answers of the SavedModel within 1e-05, got \w+ with a"
        ),
        loaded(tmp_path, "text", "onnx"),
    ):
        pass


@pytest.mark.slow
def test_a_server_with_an_engine_answers_all_protocols_new_versions_and_batches(golden, tmp_path):
    served, config = made_formats.make("classification embeddings", str(golden / "vocab_uncased.txt"))
    served.prompts = {"query": "query: "}
    made_formats.write(served, config, tmp_path / "vectors", ("saved_model", "onnx"))
    options = {
        "models": [ServedModelConfig(name="vectors", base_path=str(tmp_path / "vectors" / "text"))],
        "rest_port": 0,
        "grpc_port": None,
        "poll_seconds": 0.2,
        "drain_seconds": 5,
    }
    answers = {}
    for engine in ("", "onnx"):
        with made_serving.embedded(ServerOptions(engine=engine, **options)) as running:
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                bodies = [
                    json.dumps(
                        {"instances": made_formats.TEXTS[: 1 + number % 4], "signature_name": signature}
                    ).encode()
                    for number in range(8)
                    for signature in ("serving_default", "query")
                ]
                found = list(pool.map(lambda body: running.ask("/v1/models/vectors:predict", body), bodies))
                assert {status for status, _ in found} == {200}
                answers[engine] = [json.loads(answer)["predictions"] for _, answer in found]
                status, vectors = running.ask("/embed", json.dumps({"inputs": made_formats.TEXTS[:2]}).encode())
                assert status == 200
                answers[engine].append([{"embedding": vector} for vector in json.loads(vectors)])
                status, refused = running.ask(
                    "/v1/models/vectors:predict", json.dumps({"instances": ["x"], "signature_name": "prepare"}).encode()
                )
                assert status == 400 and b'Serving signature key \\"prepare\\" not found' in refused
            if engine:
                made_formats.write(served, config, tmp_path / "vectors", ("saved_model", "onnx"))  # a new version
                made_serving.wait_for(
                    lambda: (
                        json.loads(running.ask("/v1/models/vectors")[1])["model_version_status"][0]["version"] == "2"
                    )
                )
                assert running.ask("/v1/models/vectors:predict", bodies[0])[0] == 200
    for one, other in zip(answers[""], answers["onnx"]):
        np.testing.assert_allclose([row["embedding"] for row in one], [row["embedding"] for row in other], atol=2e-5)


@pytest.fixture
def halved(tmp_path, monkeypatch):
    """A servable with engines beside it: one off by too much, one that is not installed, and three of speeds."""
    module, place = Halved(), tmp_path / "text" / "1"
    signatures = {"serving_default": module.whole, "prepare": module.prepare, "finish": module.finish}
    tf.saved_model.save(module, str(place), signatures=signatures)
    offered = {"onnx": Sum(5e-5), "litert": Sum(5e-4), "openvino": Sum(), "openvino_int8": Sum(0.01)}
    for name, more in {**{name: {} for name in offered}, "openvino_int8": {"loss": 0.004, "bound": 0.1}}.items():
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "1" / "model.json").write_text(json.dumps({"limits": LIMITS, **more}))
    loads = []

    def load_engine(folder, *_):
        loads.append(name := pathlib.Path(folder).parent.name)
        if name in missing:
            raise ValueError(f"{name} is not installed")
        return offered[name], json.loads((pathlib.Path(folder) / "model.json").read_text())

    def take_turns(sides, request):
        speed = next(speeds[name] for name, value in offered.items() if value is sides[1].engine)
        assert sides[0](request).keys() == sides[1](request).keys()
        return [[2.0], [2.0 * speed]]

    missing, speeds = set(), {"onnx": 0.5, "openvino": 0.8, "openvino_int8": 0.2}
    monkeypatch.setattr(engine_servable, "load_engine", load_engine)
    monkeypatch.setattr(comparison, "take_turns", take_turns)
    servable = Servable("model", 1, str(place))
    yield servable, str(place), missing, speeds, loads
    servable.close()


def engine_of(servable):
    run = servable.signature("").computed_by
    return run and run.engine


def test_the_fastest_engine_is_taken_of_those_that_agree(halved):
    servable, place, missing, speeds, _ = halved
    lines = engine_choice.choose_engine(servable, place)
    assert lines[-1] == "--engine=auto uses onnx" and engine_of(servable).error == 5e-5
    assert "onnx: 1000.00, 5.0e-05" in lines and "openvino: 1600.00, 0.0e+00" in lines
    (refused,) = [line for line in lines if line.startswith("litert: not used: ")]
    assert "expected the answers of the SavedModel within 0.0001, got words with a difference of 0.0005" in refused
    assert any(line.startswith("openvino_int8: not used: --most_loss admits a model") for line in lines)
    assert engine_choice.choose_engine(servable, place, most_loss=0.003)[-1] == "--engine=auto uses onnx"
    assert engine_choice.choose_engine(servable, place, most_loss=0.01)[-1] == "--engine=auto uses openvino_int8"
    missing.add("onnx")
    lines = engine_choice.choose_engine(servable, place)
    assert lines[-1] == "--engine=auto uses openvino" and "onnx: not used: onnx is not installed" in lines
    speeds["openvino"] = 1.5  # slower than TensorFlow
    servable.signature("").computed_by = None
    assert engine_choice.choose_engine(servable, place)[-1] == "--engine=auto uses saved_model"
    assert engine_of(servable) is None


def test_a_choice_is_kept_for_the_content_of_a_model(halved, tmp_path):
    servable, place, missing, speeds, loads = halved
    cache = tmp_path / "cache"
    before = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    engine_choice.choose_engine(servable, place, cache_folder=str(cache))
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file() and cache not in path.parents) == before
    loads.clear()
    speeds["openvino"] = 0.1  # is not seen: nothing is measured
    (line,) = engine_choice.choose_engine(servable, place, cache_folder=str(cache))
    assert line.startswith(f"--engine=auto uses onnx (from {cache}/engine-") and loads == ["onnx"]
    missing.add("onnx")  # what is kept does not load any more
    assert engine_choice.choose_engine(servable, place, cache_folder=str(cache))[-1] == "--engine=auto uses openvino"
    missing.clear()
    for file in cache.iterdir():
        file.write_text("{")
    assert engine_choice.choose_engine(servable, place, cache_folder=str(cache))[-1] == "--engine=auto uses openvino"
    (tmp_path / "openvino" / "1" / "model.json").write_text(json.dumps({"limits": LIMITS, "other": 1}))
    speeds["openvino"] = 0.9
    assert engine_choice.choose_engine(servable, place, cache_folder=str(cache))[-1] == "--engine=auto uses onnx"
