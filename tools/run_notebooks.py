"""Runs the notebooks of docs/notebooks and keeps their outputs.

    python tools/run_notebooks.py
    python tools/run_notebooks.py --notebook=docs/notebooks/from_a_table.ipynb

A notebook is written only if all its cells ran.
"""

from official_bert.command_line import run_main

import pathlib
import re
from typing import TYPE_CHECKING

from absl import flags

from official_bert.storage.files import find_files, written_whole

if TYPE_CHECKING:
    from nbformat import NotebookNode

FLAGS = flags.FLAGS
flags.DEFINE_string("notebook", "docs/notebooks/*.ipynb", "The notebooks (globs with commas).")
flags.DEFINE_integer("timeout", 1800, "Seconds that a cell may take.", 1)

# Messages that TensorFlow's C++ writes to standard error in every process, whatever TF_CPP_MIN_LOG_LEVEL is.
NOTES = re.compile(r"^(WARNING: All log messages before absl::InitializeLog\(\)|I\d{4} ).*\n?", re.MULTILINE)


def execute(notebook: "NotebookNode", folder: pathlib.Path, timeout: int) -> None:
    """Runs the cells in `folder` and stores their outputs in `notebook`, without TensorFlow's messages on standard
    error.

    Raises nbclient's CellExecutionError if a cell fails.
    """
    from nbclient import NotebookClient

    NotebookClient(
        notebook,
        timeout=timeout,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(folder)}},
    ).execute()
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.get("name") == "stderr":
                output.text = NOTES.sub("", output.text)
        if "outputs" in cell:
            cell.outputs = [output for output in cell.outputs if output.get("text", "kept").strip()]


def main(_: list[str]) -> None:
    """Runs each notebook and writes it with its outputs."""
    import nbformat
    from nbclient.exceptions import CellExecutionError

    for path in find_files(FLAGS.notebook, "--notebook"):
        notebook = nbformat.read(path, as_version=4)
        try:
            execute(notebook, pathlib.Path(path).parent, FLAGS.timeout)
        except CellExecutionError as error:
            raise ValueError(f"{path}: a cell failed: {error.ename}: {error.evalue}") from None
        with written_whole(path) as file:
            file.write(nbformat.writes(notebook) + "\n")
        print(f"{path}: {sum(cell.cell_type == 'code' for cell in notebook.cells)} cells ran")


if __name__ == "__main__":
    run_main(main)
