"""Files of other runtimes that nobody here wrote."""

import numpy as np
import pytest

from official_bert.runtimes import engines

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


def write_model(folder, location, inside="initializer"):
    """Writes x + w, w in an external file; as an initializer, as a constant's attribute, or in the branch of an If."""
    weight = onnx.numpy_helper.from_array(np.array([1.0, 2.0], np.float32), "w")
    (folder / "weights.bin").write_bytes(weight.raw_data)
    weight.ClearField("raw_data")
    weight.data_location = onnx.TensorProto.EXTERNAL
    weight.external_data.add(key="location", value=location)
    types = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in ("x", "y", "w")]
    add, constant = (
        onnx.helper.make_node("Add", ["x", "w"], ["y"]),
        onnx.helper.make_node("Constant", [], ["w"], value=weight),
    )
    if inside == "branch":
        always = onnx.helper.make_node("Constant", [], ["c"], value=onnx.numpy_helper.from_array(np.array(True), "c"))
        branch = onnx.helper.make_graph([constant], "b", [], [types[2]])
        nodes = [always, onnx.helper.make_node("If", ["c"], ["w"], then_branch=branch, else_branch=branch), add]
    else:
        nodes = [constant, add] if inside == "attribute" else [add]
    graph = onnx.helper.make_graph(nodes, "g", types[:1], types[1:2], [weight] if inside == "initializer" else [])
    model = onnx.helper.make_model(graph, ir_version=8, opset_imports=[onnx.helper.make_opsetid("", 17)])
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    return str(folder / "model.onnx")


def test_external_data_is_read_from_the_folder(tmp_path):
    model = engines.start("onnx", write_model(tmp_path, "weights.bin"))
    np.testing.assert_array_equal(model({"x": np.array([10, 20], np.float32)})["y"], [11, 22])


@pytest.mark.parametrize("inside", ["initializer", "attribute", "branch"])
@pytest.mark.parametrize(
    "location",
    [
        "/etc/hostname",
        "../weights.bin",
        "C:\\weights.bin",
        "below/../../weights.bin",
        "linked",
        "*/_ORT_MEM_ADDR_/*",
        "gone",
        "",
    ],
)
def test_external_data_elsewhere_is_refused(tmp_path, location, inside):
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "weights.bin").write_bytes(bytes(8))
    (folder / "linked").symlink_to("../weights.bin")
    path = write_model(folder, location, inside)
    with pytest.raises(
        ValueError, match=f"^{path}: OnnxModel cannot read it: external data: .*(inside the folder|is not there)"
    ):
        engines.start("onnx", path)
