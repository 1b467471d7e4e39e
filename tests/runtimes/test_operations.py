"""The operations in a SavedModel's graph decide whether tensorflow-text is imported."""

import sys

import pytest
from tensorflow.core.protobuf import saved_model_pb2

from official_bert.runtimes.operations import register_operations


def write(folder, *operations):
    """Writes a SavedModel of a function with these operations, which its graph calls."""
    definition = saved_model_pb2.SavedModel()
    graph = definition.meta_graphs.add().graph_def
    body = graph.library.function.add()
    body.signature.name = "__inference_answer_7"
    graph.node.add(name="call", op="__inference_answer_7")
    for operation in operations:
        body.node_def.add(name=operation.lower(), op=operation)
    (folder / "saved_model.pb").write_bytes(definition.SerializeToString())
    return definition


def test_a_graph_of_tensorflows_operations_needs_nothing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_text", None)  # an import of it fails
    written = write(tmp_path, "UnicodeDecodeWithOffsets", "StatefulPartitionedCall", "_Retval")
    assert register_operations(str(tmp_path)) == written


def test_another_operation_needs_tensorflow_text(tmp_path, monkeypatch):
    write(tmp_path, "UnicodeDecodeWithOffsets", "SentencepieceTokenizeWithOffsetsOp")
    monkeypatch.setitem(sys.modules, "tensorflow_text", None)
    with pytest.raises(ValueError, match=r"saved_model\.pb: .*not installed, got SentencepieceTokenizeWithOffsetsOp$"):
        register_operations(str(tmp_path))


@pytest.mark.parametrize("content", [None, b"\xff\xff"])
def test_a_file_that_is_missing_or_damaged_is_left_to_the_loader(tmp_path, content):
    if content is not None:
        (tmp_path / "saved_model.pb").write_bytes(content)
    assert not register_operations(str(tmp_path)).meta_graphs
