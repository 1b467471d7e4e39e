"""The flags that several commands share (--strategy, --tpu_name, --config), and a main that reports errors in one line.

Importing this defines no flag; a command calls what it needs.
"""

import importlib.abc
import os
import sys

try:
    import resource
except ImportError:  # Windows has no such limit
    resource = None  # type: ignore[assignment]

STOPPED = "error: stopped by SIGINT"
LEAST_ADDRESS_SPACE = 4 << 30  # bytes, with which a small training ends on 2 cores; below it, threads cannot start
# What the system, its loader of libraries and C++ say; libraries pass it on in errors of many types.
OUT_OF_MEMORY = (
    "failed to map segment",
    "annot allocate memory",
    "cannot create shared object descriptor",
    "std::bad_alloc",
    "can't start new thread",
)
PATIENCE = 0.3  # seconds that a person waits in silence after Ctrl-C
# The packages that `pip install official-bert` leaves out, by the extra that has them (pyproject.toml).
EXTRAS = {
    "serving": ("aiohttp", "grpc", "grpc_health", "orjson", "prometheus_client", "tensorflow_serving", "urllib3"),
    "beam": ("apache_beam", "dask", "distributed"),
    "excel": ("openpyxl",),
    "faiss": ("faiss",),
    "onnx": ("onnx", "onnxruntime", "tf2onnx"),
    "litert": ("ai_edge_litert",),
    "japanese": ("fugashi", "unidic_lite", "ipadic", "unidic"),
    "chinese": ("jieba",),
}


def missing_extra(module: str | None) -> str:
    """Returns the error for a module of an extra that is not installed; "" for other modules."""
    return next(
        (
            f"error: {module} is not installed; it is part of an extra: pip install 'official-bert[{extra}]', or in a "
            f"checkout pip install '.[{extra}]'"
            for extra, modules in EXTRAS.items()
            if module and module.partition(".")[0] in modules
        ),
        "",
    )


def is_out_of_memory(error: BaseException | None) -> bool:
    """Returns whether an error, or one that led to it, says that there is too little memory or address space."""
    while error is not None:
        if isinstance(error, MemoryError) or type(error).__name__ == "ResourceExhaustedError":  # that of TensorFlow
            return True
        if any(words in str(error) for words in OUT_OF_MEMORY):
            return True
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False


def address_space() -> int | None:
    """Returns the bytes of address space that this process may have (`ulimit -v`), None if there is no limit."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0] if resource else -1
    return None if limit < 0 else limit


def out_of_memory_line() -> str:
    """Returns the error for too little memory, with the limit of address space if there is one."""
    limit = address_space()
    return (
        "error: out of memory; smaller batches (training.batch_size, with as many more training.accumulation_steps), "
        "shorter sequences or a smaller model take less"
        + (f"; this process may have {limit:,} bytes of address space (ulimit -v)" if limit else "")
    )


class EnoughAddressSpace(importlib.abc.MetaPathFinder):
    """Refuses to import TensorFlow into too little address space, where it would end the process without an error."""

    def find_spec(
        self, fullname: str, path: "Iterable[str] | None" = None, target: "types.ModuleType | None" = None
    ) -> None:
        """Finds nothing. Raises MemoryError for TensorFlow if `ulimit -v` is too low."""
        if fullname == "tensorflow" and (limit := address_space()) and limit < LEAST_ADDRESS_SPACE:
            raise MemoryError(f"TensorFlow needs {LEAST_ADDRESS_SPACE:,} bytes of address space")


def _show(kind: type[BaseException], error: BaseException, traceback: "types.TracebackType | None") -> None:
    """Shows Ctrl-C, too little memory and a missing extra in one line, and other errors as Python does."""
    if issubclass(kind, KeyboardInterrupt):
        print(STOPPED, file=sys.stderr)
    elif is_out_of_memory(error):
        print(out_of_memory_line(), file=sys.stderr)
    elif isinstance(error, ModuleNotFoundError) and (line := missing_extra(error.name)):
        print(line, file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, traceback)


# Before the other imports, here and in the commands: they take a second, some of them import TensorFlow, and `run_main`
# begins after.
sys.excepthook = _show
if address_space():
    sys.meta_path.insert(0, EnoughAddressSpace())
# silences TensorFlow's messages about the machine, unless the user has set it
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import concurrent.futures
import contextlib
import dataclasses
import importlib.util
import io
import math
import re
import select
import shlex
import signal
import tempfile
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from absl import app, flags, logging

from official_bert.command_names import BY_ONE_NAME, as_installed
from official_bert.config import STRATEGIES, Config, ConfigSources, merge
from official_bert.fields import OptionsNeededError, as_flags, refuse_unused
from official_bert.flags_of_2018 import flags_by_key, flags_without_meaning
from official_bert.storage.files import disk_full_reason, disk_of, is_remote
from official_bert.storage.temporaries import original_paths
from official_bert.typed_values import Removed, check_keys, did_you_mean, dotted_keys

T = TypeVar("T")
# Flags that commands had: the value that is still read, and what replaces any other.
REMOVED_FLAGS: Mapping[str, Removed] = types.MappingProxyType(
    {
        "plot_run --title": Removed("", "the names of the runs' folders stand in the title"),
        "plot_run --baseline_label": Removed(
            "unigram distribution, held out", "the level of --baseline has this label"
        ),
        "look_inside --title": Removed("", "the name of the model stands in the title"),
        "look_inside --seed": Removed(0, "other sentences in --input_file hide other words"),
        "lower_for_tpu --most": Removed(12, "--hlo_file has all operations"),
    }
)
# Options of tasks that read tables, which people type as flags.
TABLE_KEYS = ("options.delimiter", "options.header", "options.text_column", "options.label_column")
BACKENDS = ("jax", "torch", "openvino")  # what the other backends of Keras import
FULL = 1 << 20  # bytes: a disk that has fewer free is full


# Flags that belong to one strategy.
PLACEMENT: Mapping[str, str] = types.MappingProxyType(
    {
        "num_cpu_devices": "mirrored",
        "worker_hosts": "multi_worker",
        "task_index": "multi_worker",
        "join_seconds": "multi_worker",
        "tpu_name": "tpu",
        "tpu_zone": "tpu",
        "gcp_project": "tpu",
    }
)
JOIN_SECONDS = 15.0  # a missing host is to be told within half a minute


def define_placement() -> None:
    """Defines --strategy and the flags that belong to it."""
    flags.DEFINE_enum("strategy", "one_device", STRATEGIES, "Where to compute.")
    flags.DEFINE_integer(
        "num_cpu_devices", 0, "With --strategy=mirrored and no GPU: logical CPU devices.", lower_bound=0
    )
    flags.DEFINE_string("worker_hosts", "", "With --strategy=multi_worker and no TF_CONFIG: host:port,host:port,...")
    flags.DEFINE_integer("task_index", 0, "The number of this worker among --worker_hosts.")
    flags.DEFINE_float(
        "join_seconds",
        JOIN_SECONDS,
        "How long a worker of --strategy=multi_worker waits for the others to start; more "
        "where a scheduler starts machines minutes apart.",
        lower_bound=0.0,
    )
    flags.DEFINE_string("tpu_name", "", "With --strategy=tpu: the TPU's name; local on a TPU VM.")
    flags.DEFINE_string("tpu_zone", "", "The TPU's zone.")
    flags.DEFINE_string("gcp_project", "", "The TPU's project.")
    flags.DEFINE_bool("use_tpu", False, "2018's name of --strategy=tpu.")


def placement_values(values: Any) -> dict[str, Any]:
    """Returns the arguments of `Placement` from absl's `FLAGS`; raises ValueError for flags of another strategy, which
    would do nothing.
    """
    strategy = "tpu" if values.use_tpu else values.strategy
    if values["strategy"].present and strategy != values.strategy:
        raise ValueError(f"--use_tpu: means --strategy=tpu, got --strategy={values.strategy} too")
    without_tpu = values["use_tpu"].present and not values.use_tpu  # 2018's scripts name the TPU that they do not use
    for name, owner in PLACEMENT.items():
        if values[name].value != values[name].default and owner != strategy and not (owner == "tpu" and without_tpu):
            raise ValueError(f"--{name}: expected --strategy={owner} with it, got {strategy}")
    return {"strategy": strategy} | {name: values[name].value for name in PLACEMENT}


def refuse_unread(values: Any, needs: Iterable[tuple[Iterable[str], bool, str]]) -> None:
    """Raises ValueError for flags with another value than their default that would do nothing (`values`: absl's
    `FLAGS`).

    `needs` are names of flags, whether they are read beside the others, and what they need.
    """
    for names, are_read, reader in needs:
        for name in names:
            refuse_unused(f"--{name}", values[name].value, values[name].default, reader, are_read)


def from_flags(kind: type[T], values: Any, **others: Any) -> T:
    """Returns a dataclass with the values that its fields are named after, and `others` (`values`: absl's `FLAGS`, or
    settings).
    """
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    return kind(
        **{name: getattr(values, name) for name in names if name not in others and hasattr(values, name)}, **others
    )


def define_configuration() -> None:
    """Defines --config, --set, --bert_config_file and --allow_changed_data."""
    flags.DEFINE_string("config", None, "The run's YAML.")
    flags.DEFINE_multi_string("set", [], "Overrides, as in --set optimizer.learning_rate=3e-5.")
    flags.DEFINE_string("bert_config_file", None, "2018: the model's JSON; model.* of the configuration.")
    flags.DEFINE_bool("allow_changed_data", False, "Continue a run although its data or vocabulary have changed.")


def define_base(flag: str) -> None:
    """Defines --base."""
    flags.DEFINE_string(
        "base",
        "",
        f"The model that a PEFT folder, if --{flag} is one, is an adapter for: a path, or "
        "a name on a hub (docs/adapters.md).",
    )


def define_no_answer() -> None:
    """Defines the flags that decide when a served model of question answering answers with ""."""
    flags.DEFINE_bool(
        "no_answer",
        None,
        "Question answering: whether a question may have no answer, as in SQuAD 2.0; by default as in "
        "training. A published checkpoint does not record it.",
    )
    flags.DEFINE_float(
        "null_score_diff_threshold",
        None,
        "Question answering: no answer is given where its score exceeds that of the "
        "best answer by more than this; by default as in training, or 0.",
    )


def define_hours_and_cache() -> None:
    """Defines --hours and --cache_dir."""
    flags.DEFINE_float("hours", None, "Hours to train, instead of a number of steps or epochs: training.hours.")

    flags.DEFINE_string(
        "cache_dir",
        os.path.join("~", ".cache", "official_bert"),
        "A folder for what is slow to make: tokenized "
        "data, and plain copies of records that are packed or lie elsewhere; empty: none.",
    )


def config_sources(values: Any) -> ConfigSources:
    """Returns the YAML, 2018's flags and --set of a training (`values`: absl's `FLAGS`).

    Raises ValueError for what is wrong whatever a checkpoint says, a file that cannot be read and an unknown key: call
    it before TensorFlow is imported and other workers are awaited.
    """
    sources = ConfigSources(values.config or "", values.bert_config_file or "", flags_by_key(values), tuple(values.set))
    check_keys(Config, merge(*sources.read()))
    return sources


def refuse_nan(values: Any) -> None:
    """Raises ValueError for a flag that is not a number (`values`: absl's `FLAGS`): NaN is within every bound that absl
    checks.
    """
    for name in values:
        if isinstance(value := values[name].value, float) and math.isnan(value):
            raise ValueError(f"--{name}: expected a number, got {value}")


@contextlib.contextmanager
def announcing_signals(tell: Callable[[str], None]) -> Iterator[None]:
    """Calls `tell` with the name of SIGINT or SIGTERM when it comes, unless the process ends of it at once.

    It is called in a thread: Python runs the handler of a signal only when compiled code, such as a step or an
    evaluation, has ended. Does nothing outside the main thread, which alone gets signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)

    def watch() -> None:
        while number := os.read(reading, 1):
            if number[0] in (signal.SIGINT, signal.SIGTERM):
                with contextlib.suppress(OSError):  # the terminal may be gone
                    tell(signal.Signals(number[0]).name)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(writing)
        thread.join()
        os.close(reading)


@contextlib.contextmanager
def _announcing_stop() -> Iterator[None]:
    """Says that a command is stopping, if it does not end at once."""
    ended = threading.Event()

    def tell(name: str) -> None:
        if not ended.wait(PATIENCE):
            print(f"{name}: stops after the current computation", file=sys.stderr, flush=True)

    with announcing_signals(tell):
        try:
            yield
        finally:
            ended.set()


def require_here(path: str, flag: str, reason: str) -> None:
    """Raises ValueError, naming the flag and the reason, for a path elsewhere than on this machine."""
    if is_remote(path):
        raise ValueError(f"--{flag}={path}: expected a path on this machine: {reason}")


def note_of_full_disks(values: Any) -> str:
    """Returns which of the paths on the command line, and of this machine's temporary files, lie on full disks; "" for
    none.
    """
    given = [flag for flag in map(values.__getitem__, values) if flag.present and isinstance(flag.value, str)]
    paths = {f"--{flag.name}={flag.value}": flag.value for flag in given if flag.value}
    paths[tempfile.gettempdir()] = tempfile.gettempdir()
    full = [name for name, path in paths.items() if (disk := disk_of(os.path.expanduser(path))) and disk[1] < FULL]
    return f" (on a full disk: {', '.join(full)})" if full else ""


def error_in_one_line(error: object) -> str:
    """Returns an error in one line: of the operating system's, the file and what is wrong with it."""
    if isinstance(error, OSError) and error.filename is not None and error.filename2 is None and error.strerror:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return " ".join(str(error).split())


def error_line(error: BaseException, values: Any) -> str:
    """Returns the line for a user's mistake, Ctrl-C, or for what the machine or the installation lacks; "" for a defect
    of the program.

    `values` are absl's `FLAGS`.
    """
    text, reason = error_in_one_line(error), disk_full_reason(error)
    if isinstance(error, KeyboardInterrupt):
        return STOPPED
    if isinstance(error, OptionsNeededError):
        commands = [f"  {shlex.join(sys.orig_argv)} {as_flags(options)}" for options in error.readings]
        these = "this command reads it" if len(commands) == 1 else "one of these commands reads it"
        rows = [f"  {row}" for row in error.rows]
        return "\n".join([f"error: {error_in_one_line(error.problem)}; {these}:", *rows, *commands])
    if isinstance(error, (ValueError, OSError)):
        is_nameless = isinstance(error, OSError) and error.filename is None and reason
        return f"error: {text}{note_of_full_disks(values) if is_nameless else ''}"
    if isinstance(error, concurrent.futures.BrokenExecutor):
        return "error: a worker process was killed, perhaps for lack of memory (fewer --num_workers need less)"
    if isinstance(error, ModuleNotFoundError):
        backend = f"error: KERAS_BACKEND: expected tensorflow, got a backend that needs {error.name}"
        return missing_extra(error.name) or (backend if error.name in BACKENDS else "")
    if reason:
        text = re.sub(r"\{\{.*?\}\} *|\[Op:.*?\]", "", text)  # TensorFlow's names of its operations
        return f"error: {reason}: {text}{note_of_full_disks(values)}"
    if is_out_of_memory(error):
        return out_of_memory_line()
    return ""


def _show_installed_names(main: types.ModuleType, values: Any) -> None:
    """Lets the --help of a main module show what an installation has (`values`: absl's `FLAGS`)."""
    main.__doc__ = as_installed(main.__doc__ or "")
    for flag in values.flags_by_module_dict().get(sys.argv[0], []):
        flag.help = as_installed(flag.help or "")


@contextlib.contextmanager
def quiet_end() -> Iterator[None]:
    """Ends a command without a message if nobody reads its standard output any more, as behind `| head`."""
    try:
        yield
    except BrokenPipeError:
        if not output_is_closed():
            raise
        raise SystemExit(1) from None
    finally:
        output_is_closed()


def output_is_closed() -> bool:
    """Returns whether nobody reads standard output any more; what is still written there is then dropped."""
    with contextlib.suppress(BrokenPipeError, io.UnsupportedOperation):
        sys.stdout.flush()
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        if not poll.poll(0):
            return False
    with contextlib.suppress(io.UnsupportedOperation):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return True


def run_main(main: Any) -> None:
    """Runs an absl main; an error that `error_line` knows gives its line and status 1."""

    def checked_main(arguments: list[str]) -> Any:
        logging.set_verbosity(logging.WARNING)
        if without := flags_without_meaning(flags.FLAGS):
            print(f"of 2018, without meaning here: {', '.join(without)}", file=sys.stderr)
        try:
            refuse_nan(flags.FLAGS)
            with _announcing_stop(), quiet_end():
                return main(arguments)
        except (Exception, KeyboardInterrupt) as error:
            if line := original_paths(error_line(error, flags.FLAGS)):
                raise SystemExit(as_installed(line) if is_installed else line) from None
            raise

    main_module = sys.modules["__main__"]
    is_installed = hasattr(main_module, BY_ONE_NAME)
    with quiet_end():
        if is_installed:
            _show_installed_names(main_module, flags.FLAGS)
        app.run(checked_main, flags_parser=parse_flags)


def parse_flags(arguments: list[str]) -> list[str]:
    """Parses the command line as absl does, but answers an unknown flag, which may be a key or a name of another
    library, with ours.
    """
    try:
        return flags.FLAGS(arguments)
    except flags.UnrecognizedFlagError as error:
        command = os.path.splitext(os.path.basename(arguments[0]))[0]
        if removed := REMOVED_FLAGS.get(f"{command} --{error.flagname}"):
            off, instead = removed
            if (given := f"--{error.flagname}={off}") in arguments:
                return parse_flags([argument for argument in arguments if argument != given])
            raise SystemExit(f"error: --{error.flagname}: this flag was removed; {instead}") from None
        keys = [*dotted_keys(Config), *TABLE_KEYS] if "set" in flags.FLAGS else []
        near = did_you_mean(error.flagname, [*(f"--{name}" for name in flags.FLAGS), *(f"--set {key}" for key in keys)])
        if near:
            raise SystemExit(f"error: --{error.flagname}: no such flag; {near}") from None
    except flags.Error:
        pass
    return app.parse_flags_with_usage(arguments)
