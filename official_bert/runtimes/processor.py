"""Names this machine's processor."""

import os

INSTRUCTIONS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16")  # that make engines fast


def processor() -> str:
    """Returns this processor's name, number of cores and the instructions that engines use; "" if the system has no
    cpuinfo.
    """
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            found = dict(line.split(":", 1) for line in file if ":" in line)
    except OSError:
        return ""
    values = {name.strip(): value.strip() for name, value in found.items()}
    has = [name for name in INSTRUCTIONS if name in values.get("flags", "").split()]
    return f"{values.get('model name', 'unknown processor')}, {os.cpu_count()} cores, {' '.join(has)}"
