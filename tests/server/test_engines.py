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

from official_bert.runtimes.engines import ENGINES
from official_bert.server.engines import use_engine
from official_bert.server.servable import Servable
from official_bert.server.server import ServerOptions
from official_bert.server.server_config import ServedModelConfig
from official_bert.server.statuses import RequestError


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
    columns = {name: np.array([row[name] for row in rows]).astype("S").astype(object) for name in inputs}
    yield from ({name: value[part] for name, value in columns.items()} for part in (slice(None), slice(1), slice(1, 2), slice(0)))


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


def test_an_engine_computes_rows_in_groups_and_refuses_what_the_savedmodel_refuses(golden, tmp_path):
    export("classification", golden, tmp_path)
    with loaded(tmp_path, "ids", "onnx") as (servable, said):
        assert said.startswith("serving_default by onnx, within")
        assert sorted(servable.signatures) == sorted(servable.definitions) == ["examples", "serving_default"]  # no client sees halves
        signature, run = servable.signature(""), servable.signature("").computed_by
        sizes, engine = [], run.engine.run
        run.engine.run = lambda rows: (sizes.append(rows["input_ids"].shape), engine(rows))[1]
        draw = np.random.default_rng(1)
        lengths = np.array([3, 48, 4, 47, *[5] * 20])
        mask = (np.arange(48) < lengths[:, None]).astype(np.int32)
        rows = {"input_ids": draw.integers(0, 3000, mask.shape).astype(np.int32) * mask, "input_mask": mask, "segment_ids": 0 * mask}
        compare(signature, rows)
        assert sizes == [(2, 48), (22, 5)]  # short rows do not pay for long ones
        with pytest.raises(RequestError, match="input_mask: expected numbers of 0 to 1, got"):
            signature.run({**rows, "input_mask": mask + 1})
    shutil.move(tmp_path / "onnx", tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="onnx/1, which run_export --format=saved_model,onnx writes beside .*ids/1, got no such folder"), \
            loaded(tmp_path, "ids", "onnx"):
        pass


@pytest.mark.slow
def test_a_model_with_other_weights_and_one_without_halves_do_not_load(golden, tmp_path):
    served, config = made_formats.make("ner", str(golden / "vocab_uncased.txt"))
    made_formats.write(served, config, tmp_path, ("saved_model", "onnx"))
    served.model.tagger.output_bias.assign_add([0.0, 0.0, 0.0, 1e-3, 0.0])
    made_formats.write(served, config, tmp_path / "other", ("onnx",))
    made_formats.write(served, config, tmp_path / "other", ("saved_model",))
    shutil.rmtree(tmp_path / "onnx")
    shutil.copytree(tmp_path / "other" / "onnx", tmp_path / "onnx")
    with pytest.raises(ValueError, match=r"--engine=onnx: expected the answers of the SavedModel within 1e-05, got \w+ with a"), \
            loaded(tmp_path, "text", "onnx"):
        pass
    shutil.copytree(tmp_path / "other" / "onnx" / "1", tmp_path / "other" / "onnx" / "2")
    servable = Servable("model", 2, str(tmp_path / "other" / "text" / "2"))
    with pytest.raises(ValueError, match="--engine=onnx: expected a SavedModel with the signatures prepare and finish, which run_export"):
        use_engine(servable, str(tmp_path / "other" / "text" / "2"), "onnx")
    servable.close()


@pytest.mark.slow
def test_a_server_with_an_engine_answers_all_protocols_new_versions_and_batches(golden, tmp_path):
    served, config = made_formats.make("classification embeddings", str(golden / "vocab_uncased.txt"))
    served.prompts = {"query": "query: "}
    made_formats.write(served, config, tmp_path / "vectors", ("saved_model", "onnx"))
    options = {"models": [ServedModelConfig(name="vectors", base_path=str(tmp_path / "vectors" / "text"))], "rest_port": 0,
               "grpc_port": None, "poll_seconds": 0.2, "drain_seconds": 5}
    answers = {}
    for engine in ("", "onnx"):
        with made_serving.embedded(ServerOptions(engine=engine, **options)) as running:
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                bodies = [json.dumps({"instances": made_formats.TEXTS[:1 + number % 4], "signature_name": signature}).encode()
                          for number in range(8) for signature in ("serving_default", "query")]
                found = list(pool.map(lambda body: running.ask("/v1/models/vectors:predict", body), bodies))
                assert {status for status, _ in found} == {200}
                answers[engine] = [json.loads(answer)["predictions"] for _, answer in found]
                status, vectors = running.ask("/embed", json.dumps({"inputs": made_formats.TEXTS[:2]}).encode())
                assert status == 200
                answers[engine].append([{"embedding": vector} for vector in json.loads(vectors)])
                status, refused = running.ask("/v1/models/vectors:predict", json.dumps(
                    {"instances": ["x"], "signature_name": "prepare"}).encode())
                assert status == 412 and b'Serving signature key \\"prepare\\" not found' in refused
            if engine:
                made_formats.write(served, config, tmp_path / "vectors", ("saved_model", "onnx"))  # a new version
                made_serving.wait_for(lambda: json.loads(running.ask("/v1/models/vectors")[1])["model_version_status"][0]["version"] == "2")
                assert running.ask("/v1/models/vectors:predict", bodies[0])[0] == 200
    for one, other in zip(answers[""], answers["onnx"]):
        np.testing.assert_allclose([row["embedding"] for row in one], [row["embedding"] for row in other], atol=2e-5)
