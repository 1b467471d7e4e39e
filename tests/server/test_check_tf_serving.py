"""deploy/check_tf_serving.py: without Docker one line and status 2; its comparison finds what differs between two
servers.
"""

import importlib.util
import os
import subprocess
import sys

import pytest
from absl import flags


@pytest.fixture(scope="module")
def check(root):
    spec = importlib.util.spec_from_file_location("check_tf_serving", root / "deploy/check_tf_serving.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_without_docker_there_is_one_line_and_status_2(root, tmp_path):
    done = subprocess.run(
        [sys.executable, str(root / "deploy/check_tf_serving.py")],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": str(tmp_path)},
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "docker: the command docker is not installed; nothing was compared\n"
    fake = tmp_path / "docker"
    for works, told in (((), "Cannot connect to the Docker daemon"), (("info",), "pull access denied")):
        fake.write_text(
            f"#!{sys.executable}\nimport sys\nsys.exit(None if sys.argv[1] in {works} else 'more\\n{told}')\n"
        )
        fake.chmod(0o755)
        done = subprocess.run(
            [sys.executable, str(root / "deploy/check_tf_serving.py")],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PATH": str(tmp_path)},
        )
        assert (done.returncode, done.stdout, done.stderr) == (2, "", f"docker: {told}; nothing was compared\n")


@pytest.mark.slow
def test_two_servers_of_the_same_models_are_equal_and_of_others_are_not(check, tmp_path, capsys):
    """The embedded server stands for TensorFlow Serving, which is not here."""
    if not flags.FLAGS.is_parsed():
        flags.FLAGS(["test"])
    check.FLAGS.seconds = 600.0  # models are loaded one by one, on a machine that may be busy
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    heads = ("classifier", "choice", "tagger_crf", "fill_mask", "question_answering", "sparse_vectors", "reranker")
    names = check.write_models(str(first), heads)
    with check.embedded(str(first), names) as one, check.embedded(str(first), names) as other:
        assert check.compare(one, other, names) == 0
    assert capsys.readouterr().out.count(": equal, at most ") == len(names) == 14
    names = check.write_models(str(second), ["classifier"])
    with check.embedded(str(first), names) as one, check.embedded(str(second), names) as other:
        assert check.compare(one, other, names) == 2
    assert "classifier_text: DIFFERENT in REST, 1 rows; gRPC, 1 rows" in capsys.readouterr().out


def test_padding_types_and_numbers_count(check):
    assert check.difference({"a": [1.0, 2.0]}, {"a": [1.0, 2.000001]}) == pytest.approx(1e-6 / 2, rel=1e-3)
    for one, other in (({"a": 1}, {"b": 1}), ([1.0], [1.0, 2.0]), (["x", ""], ["x"]), ("a", b"a"), (True, False)):
        assert check.difference(one, other) == float("inf")
