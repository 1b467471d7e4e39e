"""Runs a lowered train step on JAX's CPU client, in the environment of `make venv-tpu-compiler`: step after step, on
given batches.

    python hlo_on_cpu.py step.pb given.npz results.npz

`given` has the weights, moments and scale as state_0, state_1, ..., and the arguments of step k after them as
step_k_0, ...; `results` gets the state after step 1 in the same way, and the rows of all steps.
"""

import itertools
import sys

import jax
import numpy as np
from jaxlib import _jax, xla_client


def main(proto_file, given_file, results_file):
    """Compiles and runs the steps."""
    jax.config.update("jax_enable_x64", True)
    with open(proto_file, "rb") as file:
        computation = xla_client.XlaComputation(file.read())
    device = jax.devices("cpu")[0]
    program = device.client.compile_and_load(
        _jax.mlir.xla_computation_to_mlir_module(computation).encode(),
        _jax.DeviceList((device,)),
        xla_client.CompileOptions(),
    )
    given = np.load(given_file)
    state, rows = [jax.device_put(array) for array in numbered(given, "state")], []
    for step in itertools.count():
        arguments = [jax.device_put(array) for array in numbered(given, f"step_{step}")]
        if not arguments:
            break
        *state, row = program.execute([*state, *arguments])
        rows.append(np.asarray(row))
        if step == 0:
            first = {f"state_{number}": np.array(array) for number, array in enumerate(state)}
    np.savez(results_file, rows=np.stack(rows), **first)


def numbered(arrays, name):
    """Returns the arrays NAME_0, NAME_1, ..."""
    return [arrays[f"{name}_{number}"] for number in range(sum(key.rpartition("_")[0] == name for key in arrays.files))]


if __name__ == "__main__":
    main(*sys.argv[1:])
