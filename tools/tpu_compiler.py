"""Compiles HLO for the cores of a TPU topology with Google's compiler, without a TPU.

    .venv-tpu-compiler/bin/python tools/tpu_compiler.py v5e:2x2 step.pb compiled.hlo

`compile_for_tpu.py` runs it in the environment of `make venv-tpu-compiler`, which has JAX and libtpu but not this
package. The last line of its output is JSON: memory, work and all-reduces of the program, or the compiler's `error`.
"""

import importlib.metadata
import importlib.util
import json
import os
import pathlib
import re
import sys
from typing import Any

# The interface between them changes with each version (pyproject.toml, group tpu-compiler).
VERSIONS = {"jax": "0.7.1", "jaxlib": "0.7.1", "libtpu": "0.0.20"}
REDUCED = re.compile(r" = (.*?) all-reduce(?:-start)?\(")
ARRAY = re.compile(r"\b(pred|[a-z]+(\d+)[a-z\d]*)\[([\d,]*)\]")  # f32[8,128], bf16[], pred[4]


def other_versions() -> str:
    """Returns the installed versions that differ from `VERSIONS`; "" if none differs."""
    there = {name: importlib.metadata.version(name) if importlib.util.find_spec(name) else "none" for name in VERSIONS}
    return ", ".join(
        f"{name} {there[name]} (expected {version})" for name, version in VERSIONS.items() if there[name] != version
    )


def devices_of(topology: str) -> Any:
    """Returns the cores of a topology, which need not exist."""
    library = str(importlib.metadata.distribution("libtpu").locate_file("libtpu/libtpu.so"))
    # Before JAX is imported: it and libtpu would ask the cloud for a machine. Several compilers may run at once.
    os.environ.update(
        JAX_PLATFORMS="cpu",
        TPU_SKIP_MDS_QUERY="1",
        TPU_LIBRARY_PATH=library,
        TPU_WORKER_ID="0",
        TPU_ACCELERATOR_TYPE="v5litepod-8",
        TPU_WORKER_HOSTNAMES="localhost",
        ALLOW_MULTIPLE_LIBTPU_LOAD="1",
        TPU_LOG_DIR="disabled",
        TPU_STDERR_LOG_LEVEL="3",
    )
    from jax.experimental import topologies

    chips = {"chips_per_host_bounds": (1, 1, 1)} if topology.endswith(":1x1") else {}
    return topologies.get_topology_desc(platform="tpu", topology_name=topology, **chips).devices


def donated(hlo: str) -> str:
    """Returns a train step whose results, except the last, reuse the memory of the arguments that they replace.

    These are the new weights, moments and loss scale, and have the numbers of those arguments. `TPUStrategy` also
    updates its variables in place.
    """
    name, rest = hlo.split(", ", 1)
    results = len(ARRAY.findall(rest.split("\n", 1)[0].rpartition(")->(")[2]))
    pairs = ", ".join(f"{{{number}}}: ({number}, {{}}, may-alias)" for number in range(results - 1))
    return f"{name}, input_output_alias={{ {pairs} }}, {rest}"


def compile_program(proto: bytes, devices: Any) -> Any:
    """Returns the executable of a train step (a HloModuleProto) for all devices."""
    import numpy as np
    from jaxlib import _jax, xla_client

    options = xla_client.CompileOptions()
    options.num_replicas, options.num_partitions = len(devices), 1
    options.device_assignment = xla_client.DeviceAssignment.create(
        np.array([device.id for device in devices]).reshape(-1, 1)
    )
    # The text has what JAX's interface to the proto cannot set; it must have the large constants.
    hlo = _jax.hlo_module_from_text(donated(xla_client.XlaComputation(proto).as_hlo_text(True)))
    computation = xla_client.XlaComputation(hlo.as_serialized_hlo_module_proto())
    module = _jax.mlir.xla_computation_to_mlir_module(computation)
    return devices[0].client.compile(module.encode(), _jax.DeviceList(tuple(devices)), options)


def reduced_bytes(compiled: str) -> list[int]:
    """Returns the number of bytes that each all-reduce of a compiled program sums."""
    return [sum(array_bytes(*array) for array in ARRAY.findall(shapes)) for shapes in REDUCED.findall(compiled)]


def array_bytes(kind: str, bits: str, dimensions: str) -> int:
    """Returns the bytes of an array, from its type, the bits of a number, and its dimensions."""
    size = 1 if kind == "pred" else int(bits) // 8
    for dimension in filter(None, dimensions.split(",")):
        size *= int(dimension)
    return size


def facts_of(executable: Any, compiled: str) -> dict[str, Any]:
    """Returns the compiler's facts about a program: bytes of each kind of memory, work, all-reduces."""
    memory, cost = executable.get_compiled_memory_stats(), executable.cost_analysis()
    return {
        "memory": {
            "arguments": memory.argument_size_in_bytes,
            "outputs": memory.output_size_in_bytes,
            "aliased": memory.alias_size_in_bytes,
            "temporaries": memory.temp_size_in_bytes,
            "code": memory.generated_code_size_in_bytes,
        },
        "flop": cost["flops"],
        "bytes": cost["bytes accessed"],
        "all_reduces": reduced_bytes(compiled),
    }


def main(topology: str, proto_file: str, compiled_file: str) -> dict[str, Any]:
    """Compiles the program in a file for the cores of a topology and writes it; returns its facts, or an `error`."""
    if others := other_versions():
        return {"error": f"wrong versions: {others}; make venv-tpu-compiler"}
    try:
        executable = compile_program(pathlib.Path(proto_file).read_bytes(), devices_of(topology))
    except RuntimeError as error:  # JAX's is a subclass
        return {"error": str(error)}
    compiled = executable.hlo_modules()[0].to_string()
    pathlib.Path(compiled_file).write_text(compiled)
    return facts_of(executable, compiled)


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
