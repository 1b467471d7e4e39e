"""Runs command lines as a person types them, in this process or as processes of their own, and reads every message on
the way.

    done = person.types("python -m official_bert.run_export --checkpoint=runs/tiny --output=models/tiny")
    done = run_here("-m", "official_bert.run_export", "--checkpoint=runs/tiny", "--output=models/tiny")

`python tools/NAME.py` means the tool of the repository; all other paths are relative to the person's folder. `run_here`
is for tests of one command: it saves the seconds that a process takes to import TensorFlow.
"""

import contextlib
import dataclasses
import importlib.util
import io
import logging
import os
import pathlib
import re
import runpy
import shlex
import signal
import subprocess
import sys
import threading
import traceback
import types
import warnings
from collections.abc import Callable, Iterator

from absl import app, flags
from absl import logging as absl_logging

ROOT = pathlib.Path(__file__).parent.parent
SECONDS = 300  # that a process may take


def printed_metrics(text: str) -> dict[str, float]:
    """Returns the metrics among printed lines, shares from 0 to 1: `accuracy = 89.20 %, loss = 0.3`."""
    return {
        name: float(value) / (100 if share else 1)
        for name, value, share in re.findall(r"(?:^|, )(\w+) = (-?[\d.]+)( %)?(?=, |$)", text, re.MULTILINE)
    }


# Progress, on standard error. Every other line there is a surprise, unless a story names it.
PROGRESS = (
    r"",
    r"(answering|counting words|extracting|preparing): .*",  # a bar of tqdm
    r".*\d+%\|.*|.*\d+it \[.*|\d+.* x 2 MB \[.*",  # the same, drawn again
    r"([a-z ]+: \d+\.\d s(, |$))+|[a-z ]+: \d+%.*",  # stages of the generator
    # the server, here
    r"listening, with \w+(, \w+)*: .*|\w+ version \d+: (loaded in [\d.]+ s, \d+ warm-up requests in [\d.]+ s|unloaded)",
    r"stopping: no longer ready; requests are answered for [\d.]+ s more",
    r"stopping: \d+ running requests are answered first, for \d+ s at most",
    r"\d+ out of the last \d+ calls to .* triggered tf.function retracing.*",  # of several commands in one process
    r"warning: \d+ rows? to evaluate on, fewer than 100: .*",  # the fixtures are small
    r"Calibration.*: Expected calibration error .*",
    r"WARNING: All log messages before absl::.*",  # of XLA, once, before its line
    r"I\d{4} .*\] .*",  # notes of the server in a process of its own
)
ALARMING = re.compile(r"Traceback|\bwarning\b|\berror\b|deprecat", re.IGNORECASE)
IGNORED_BY_PYTHON = (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning)


PRETRAIN = (
    "python -m official_bert.run_pretraining --config=tiny.yaml --input_file=train.tfrecord --vocab_file=vocab.txt "
    "--output_dir=runs/tiny"
)
SERVE = (
    "python -m official_bert.serve --rest_api_port=0 --port=0 --file_system_poll_wait_seconds=0.1 "
    "--lame_duck_seconds=0.1"
)


def ask(model: str, rows: list, by_rest: list, by_grpc: list | None = None) -> dict:
    """Returns arguments of `Person.types` for a server: once it listens, its answers are put in these lists, and it is
    stopped.
    """

    def then(line: str) -> None:
        from official_bert.tools.client import GrpcClient, RestClient

        rest, grpc = re.fullmatch(r"Serving .* (http://\S+); gRPC: (\S+)", line).groups()
        with RestClient(rest, model) as client:
            by_rest.extend(client.predict(rows))
        if by_grpc is not None:
            with GrpcClient(grpc, model) as client:
                by_grpc.extend(client.predict(rows))

    return {"until": "Serving ", "then": then}


@contextlib.contextmanager
def imported_tool(name: str, folder: str = "tools") -> Iterator[types.ModuleType]:
    """Imports FOLDER/NAME.py, so not every test starts a process; its flags, `own_flags`, are removed at the end."""
    spec = importlib.util.spec_from_file_location(name, ROOT / folder / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    before = set(flags.FLAGS)
    module.own_flags = set()
    sys.path.insert(0, str(ROOT / folder))  # as for a script
    try:
        try:
            spec.loader.exec_module(module)
        finally:
            sys.path.remove(str(ROOT / folder))
            module.own_flags = set(flags.FLAGS) - before
        yield module
    finally:
        del sys.modules[name]
        for flag in module.own_flags:
            delattr(flags.FLAGS, flag)


def limited(**limits: str | int) -> list[str]:
    """Returns the beginning of a command line with limits: `limited(nofile="256:1024")`.

    Not `preexec_fn`: Python code between fork and exec aborts now and then if the process has threads.
    """
    return ["prlimit", *(f"--{name}={value}" for name, value in limits.items())]


# Only a process of its own writes it.
LOG_PREFIX = re.compile(r"^[IWE]\d{4} [\d:.]+ +\d+ \S+\.py:\d+\] ")


@dataclasses.dataclass(frozen=True)
class Done:
    """How a command ended and what it printed."""

    status: int
    out: str
    err: str

    def surprises(self, expected: tuple[str, ...] = ()) -> list[str]:
        """Returns the unexpected lines: those of standard error that are not progress, those of standard output that
        alarm.
        """
        known = (*PROGRESS, *expected)
        errors = [LOG_PREFIX.sub("", line) for line in re.split(r"[\r\n]+", self.err)]
        lines = errors + [line for line in self.out.splitlines() if ALARMING.search(line)]
        return [line for line in lines if not any(re.fullmatch(pattern, line.strip()) for pattern in known)]


class Watched(io.StringIO):
    """Collects what is printed. When a line begins with `until`, `then(line)` runs in a thread, which ends with SIGTERM
    to `pid`.
    """

    def __init__(self, until: str = "", then: Callable[[str], object] = print):
        super().__init__()
        self.until, self.then = until, then
        self.pid, self.waiting = os.getpid(), ""
        self.thread: threading.Thread | None = None
        self.failure: BaseException | None = None

    def write(self, text: str) -> int:
        """Looks at each whole line."""
        if self.until and self.thread is None:
            *lines, self.waiting = (self.waiting + text).split("\n")
            for line in lines:
                if line.startswith(self.until) and self.thread is None:
                    self.thread = threading.Thread(target=self._act, args=(line,))
                    self.thread.start()
        return super().write(text)

    def _act(self, line: str) -> None:
        try:
            self.then(line)
        except BaseException as failure:
            self.failure = failure
        finally:
            os.kill(self.pid, signal.SIGTERM)

    def finish(self) -> str:
        """Returns all that was printed; raises what went wrong in `then`, and AssertionError if `until` never came."""
        text = self.getvalue()
        if self.until:
            assert self.thread is not None, f"no line begins with {self.until!r}:\n{text}"
            self.thread.join()
        if self.failure is not None:
            raise self.failure
        return text


class Person:
    """Types commands in a folder. `types` checks the status and that no message surprises."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder

    def at(self, folder: pathlib.Path) -> "Person":
        """Returns the same person in another folder."""
        return type(self)(folder)

    def types(
        self,
        line: str,
        status: int = 0,
        messages: tuple[str, ...] = (),
        until: str = "",
        then: Callable[[str], object] = lambda line: None,
    ) -> Done:
        """Runs a command line and returns how it ended.

        `messages` are patterns of the lines on standard error that belong to the story. When a printed line begins with
        `until`, `then(line)` is called, and SIGTERM sent after it.
        """
        python, *arguments = shlex.split(line)
        assert python == "python", line
        done = self.run(arguments, Watched(until, then))
        told = f"$ {line}\n{done.out}\n{done.err}"
        assert done.status == status, f"status {done.status}, expected {status}\n{told}"
        assert not (found := done.surprises(messages)), f"unexpected messages {found}\n{told}"
        return done

    def run(self, arguments: list[str], output: Watched) -> Done:
        """Runs Python with these arguments."""
        raise NotImplementedError


class ByProcesses(Person):
    """Every command is a process."""

    def run(self, arguments, output):
        """Starts Python anew."""
        if arguments[0] != "-m":
            arguments = [str(ROOT / arguments[0]), *arguments[1:]]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        del environment["TF_CPP_MIN_LOG_LEVEL"]  # of the tests, not of the person
        with open(self.folder / ".stderr", "w+", encoding="utf-8") as errors:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=self.folder,
                env=environment,
                text=True,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
            output.pid = process.pid
            watchdog = threading.Timer(SECONDS, process.kill)
            watchdog.start()
            try:
                for line in process.stdout:
                    output.write(line)
                status = process.wait()
            finally:
                watchdog.cancel()
            out = output.finish() if status != -signal.SIGKILL else output.getvalue()
            errors.seek(0)
            return Done(status, out, errors.read())


class InThisProcess(Person):
    """Every command runs here; flags, arguments, folder, streams, warnings, signals, logging and precision are restored
    afterwards.
    """

    def run(self, arguments, output, typed=""):
        """Executes the module or the script as `__main__`; `typed` is its standard input."""
        errors = io.StringIO()
        with contextlib.ExitStack() as stack:
            stack.enter_context(own_signals())
            stack.callback(restore_precision)
            stack.enter_context(contextlib.chdir(self.folder))
            stack.enter_context(contextlib.redirect_stdout(output))
            stack.enter_context(contextlib.redirect_stderr(errors))
            stack.enter_context(_own_input(typed))
            stack.enter_context(_own_logging(errors))
            shown = stack.enter_context(warnings.catch_warnings(record=True))
            warnings.simplefilter("default")
            for category in IGNORED_BY_PYTHON:
                warnings.simplefilter("ignore", category)
            status = _execute(arguments)
            out = output.finish()
            for timer in threading.enumerate():  # the end of a process would end them
                if isinstance(timer, threading.Timer):
                    timer.cancel()
        told = "".join(warnings.formatwarning(one.message, one.category, one.filename, one.lineno) for one in shown)
        return Done(status, out, errors.getvalue() + told)


def run_here(*arguments: object, typed: str = "") -> subprocess.CompletedProcess:
    """Runs `python ARGUMENTS` in this process, in the current folder; `typed` comes on its standard input."""
    words = [str(argument) for argument in arguments]
    done = InThisProcess(pathlib.Path()).run(words, Watched(), typed)
    return subprocess.CompletedProcess(words, done.status, done.out, done.err)


class _Main(types.ModuleType):
    """Stands for the main module of the running command, whose classes its worker processes send back."""

    def __getattr__(self, name):
        return getattr(sys.modules["__main__"], name)


def _execute(arguments: list[str]) -> int:
    """Runs a main; returns its exit status."""
    app.define_help_flags()
    path, argv, typed, main = sys.path[:], sys.argv, sys.orig_argv, sys.modules.get("__mp_main__")
    sys.orig_argv = ["python", *arguments]
    sys.modules["__mp_main__"] = _Main("__mp_main__")
    others = forget_own_flags()
    try:
        if arguments[0] == "-m":
            sys.path.insert(0, os.getcwd())
            sys.argv = arguments[1:]
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            script = str(ROOT / arguments[0])
            sys.argv = [script, *arguments[1:]]
            runpy.run_path(script, run_name="__main__")
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except Exception:
        traceback.print_exc()
        return 1
    finally:
        forget_own_flags()
        for name, flag in others.items():
            flags.FLAGS[name] = flag
        sys.path[:], sys.argv, sys.orig_argv = path, argv, typed
        del sys.modules["__mp_main__"]
        if main is not None:
            sys.modules["__mp_main__"] = main
    return 0


def forget_own_flags() -> dict[str, flags.Flag]:
    """Removes and returns the flags that no installed package has defined: those of mains, loaded by tests or run
    before.
    """
    own = {}
    for name in list(flags.FLAGS):
        module = flags.FLAGS.find_module_defining_flag(name)
        if "site-packages" not in (getattr(sys.modules.get(module), "__file__", None) or ""):
            own[name] = flags.FLAGS[name]
            delattr(flags.FLAGS, name)
    return own


@contextlib.contextmanager
def _own_input(typed: str):
    before, sys.stdin = (
        sys.stdin,
        io.TextIOWrapper(io.BytesIO(typed.encode("utf-8", "surrogateescape")), encoding="utf-8"),
    )
    try:
        yield
    finally:
        sys.stdin = before


def restore_precision() -> None:
    """Gives the models of later tests float32, whatever a command has set for those of its process."""
    if distribution := sys.modules.get("official_bert.training.machines.distribution"):
        distribution.set_precision("float32")


@contextlib.contextmanager
def own_signals():
    """Ignores a SIGTERM that comes too late, and removes the handlers that a command installs."""
    watcher = signal.set_wakeup_fd(-1)
    before = {
        number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        signal.set_wakeup_fd(watcher)
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _own_logging(errors: io.StringIO):
    """Sends the logging of all packages to `errors`, as absl sends it to standard error."""
    root, handler, verbosity = logging.getLogger(), logging.StreamHandler(errors), absl_logging.get_verbosity()
    before = root.handlers[:]
    level = root.level
    # which, the first time in a process, takes away all handlers that write to standard error
    absl_logging.use_absl_handler()
    root.handlers[:] = [handler]
    absl_handler = absl_logging.get_absl_handler()
    try:
        yield
    finally:
        root.handlers[:] = before
        root.setLevel(level)
        absl_logging.set_verbosity(verbosity)
        if absl_handler not in before:
            root.removeHandler(absl_handler)
