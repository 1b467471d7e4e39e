"""What some tests need and `make install` does not give everywhere: without it they are skipped, with the command that
installs it.
"""

import importlib.util
import pathlib
import shutil

import pytest

ROOT = pathlib.Path(__file__).parent.parent
TORCH, TPU, TPU_COMPILER, UV = (
    str(ROOT / path)
    for path in (".venv-torch/bin/python", ".venv-tpu/bin/python", ".venv-tpu-compiler/bin/python", ".venv/bin/uv")
)
# programs and modules -> the command that installs them
COMMANDS = {
    ("chromium", "chromedriver"): "apt-get install chromium chromium-driver",
    ("curl",): "apt-get install curl",
    ("gcc",): "apt-get install gcc libc6-dev",
    ("java",): "apt-get install default-jre-headless",
    ("nginx",): "apt-get install nginx-light",
    ("node",): "apt-get install nodejs",
    (UV,): "make install",
    (TORCH,): "make venv-torch",
    (TPU,): "make venv-tpu",
    (TPU_COMPILER,): "make venv-tpu-compiler",
    ("apache_beam",): "pip install '.[beam]'",
    ("beam_pyspark_runner",): "pip install --no-deps --group spark",
    ("distributed",): "pip install '.[beam]'",
    ("faiss",): "pip install '.[faiss]'",
    ("fugashi",): "pip install '.[japanese]'",
    ("jieba",): "pip install '.[chinese]'",
    ("nncf",): "pip install '.[int8]'",
    ("openvino",): "pip install '.[openvino]'",
    ("ranx",): "pip install --group dev",
    ("s3fs",): "pip install --group dev",
}


def is_installed(tool: str) -> bool:
    """Whether there is a program or a module of a name, or a program at a path."""
    return bool(shutil.which(tool) or ("/" not in tool and importlib.util.find_spec(tool)))


def why_not(*tools: str) -> str:
    """Returns which of the tools, a row of `COMMANDS`, is missing, and the command; "" if none is."""
    return next((f"{tool} is not installed: {COMMANDS[tools]}" for tool in tools if not is_installed(tool)), "")


def need(*tools: str) -> None:
    """Skips the test, or the module, that calls this if one of the tools is missing."""
    if reason := why_not(*tools):
        pytest.skip(reason, allow_module_level=True)


needs_torch = pytest.mark.skipif(bool(why_not(TORCH)), reason=why_not(TORCH))
