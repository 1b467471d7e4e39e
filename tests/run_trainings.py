"""Runs cases of `training_cases.py` in this process, with the package on PYTHONPATH; `compare_trainings.py` starts it.

    python tests/run_trainings.py table,words

The current folder has the data of `write_data`. Each case leaves its run's folder there, with all variables of its last
checkpoint in variables.npz, and in ended.json how its command ended.
"""

import json
import pathlib
import sys
import time

import numpy as np
import tensorflow as tf
import training_cases
from commands import run_here


def main(names: str) -> None:
    """Runs the cases one after another."""
    here = pathlib.Path()
    tf.get_logger().setLevel("ERROR")  # it warns of functions that are traced again, for every case
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    if not (here / "masked-train.tfrecord").exists():
        training_cases.write_records(here)
    known = {case.name: case for case in training_cases.CASES}
    for name in names.split(","):
        begin, case = time.monotonic(), known[name]
        done = run_here(*case.arguments())
        (here / name).mkdir(exist_ok=True)
        error = "" if not done.returncode else " ".join(done.stderr.split()[-60:])
        if not done.returncode:
            write_variables(here / name)
        ended = {"status": done.returncode, "error": error, "seconds": round(time.monotonic() - begin, 1)}
        (here / name / "ended.json").write_text(json.dumps(ended), encoding="utf-8")
        tf.keras.backend.clear_session()


def write_variables(run: pathlib.Path) -> None:
    """Writes all variables of a run's last checkpoint, by their names in it."""
    reader = tf.train.load_checkpoint(str(run))
    values = {name: reader.get_tensor(name) for name in sorted(reader.get_variable_to_shape_map())}
    numbers = {name: np.asarray(value) for name, value in values.items() if not isinstance(value, (bytes, str))}
    np.savez(run / "variables.npz", **{name: value for name, value in numbers.items() if value.dtype.kind in "fiub"})


if __name__ == "__main__":
    main(sys.argv[1])
