"""Starts commands in processes that are forked from one that has imported TensorFlow: most of their time is the import.

with Forked() as forked:
    pid = forked.start(["-m", "official_bert.run_pretraining", ...], folder, messages)
    os.kill(pid, signal.SIGKILL)
    status, seconds, memory = forked.wait()
"""

import json
import os
import pathlib
import runpy
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[1]


class Forked:
    """One process at a time. `start` returns its number; `wait` its status, CPU seconds and most bytes of memory."""

    def __enter__(self) -> "Forked":
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
        self.server = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        return self

    def __exit__(self, *_) -> None:
        self.server.stdin.close()
        self.server.wait()

    def start(self, arguments: list[str], folder: pathlib.Path, messages: pathlib.Path, seconds: int = 0) -> int:
        """`seconds` of CPU are the most that the process may take, if not 0; its output goes to the file `messages`."""
        print(json.dumps([arguments, str(folder), str(messages), seconds]), file=self.server.stdin, flush=True)
        return json.loads(self.server.stdout.readline())

    def wait(self) -> tuple[int, float, int]:
        return tuple(json.loads(self.server.stdout.readline()))


def next_order() -> list:
    """Forks for each line of standard input; returns the order in the processes that carry one out."""
    for line in sys.stdin:
        if (pid := os.fork()) == 0:
            return json.loads(line)
        print(pid, flush=True)
        _, status, usage = os.wait4(pid, 0)
        ended = [os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10]
        print(json.dumps(ended), flush=True)
    sys.exit()


if __name__ == "__main__":
    import resource

    import tensorflow as tf

    from official_bert.models.interchange import formats  # noqa: F401
    from official_bert.training import loop  # noqa: F401

    order, place, told, most_seconds = next_order()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})  # which takes longer than it saves
    if most_seconds:
        resource.setrlimit(resource.RLIMIT_CPU, (most_seconds, most_seconds))
    os.chdir(place)
    output = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for number, file in ((0, os.open(os.devnull, os.O_RDONLY)), (1, output), (2, output)):
        os.dup2(file, number)
    sys.stdin = os.fdopen(0, encoding="utf-8")
    sys.path[0] = place
    if order[0] == "-m":
        sys.argv = order[1:]
        runpy.run_module(order[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [str(ROOT / order[0]), *order[1:]]
        sys.path[0] = str(pathlib.Path(sys.argv[0]).parent)
        runpy.run_path(sys.argv[0], run_name="__main__")
