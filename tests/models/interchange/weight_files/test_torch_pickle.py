"""The reader of PyTorch files: hostile and damaged files end in one ValueError, and change nothing in the process."""

import collections
import io
import pathlib
import resource
import struct
import time
import zipfile

import ml_dtypes
import numpy as np
import pytest

from official_bert.models.interchange.weight_files import torch_pickle
from official_bert.models.interchange.weight_files.torch_pickle import load_tensors

# Opcodes of pickle's protocol 2, written out: https://docs.python.org/3/library/pickletools.html
START, STOP, MARK, TUPLE, EMPTY_TUPLE, REDUCE, BUILD, PERSISTENT_ID = (
    b"\x80\x02",
    b".",
    b"(",
    b"t",
    b")",
    b"R",
    b"b",
    b"Q",
)
EMPTY_DICT, SETITEM, SETITEMS, FALSE = b"}", b"s", b"u", b"\x89"
# of two versions, in both forms (make.py)
REAL_FILES = sorted(pathlib.Path(__file__).parents[3].glob("fixtures/pytorch/*.bin"))
WEIGHTS = {"a.weight": np.arange(6, dtype="float32").reshape(2, 3), "b.bias": np.array([1.5, -2.0], "float32")}


def text(value):
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def number(value):
    return b"J" + struct.pack("<i", value)


def name(module, attribute):
    return f"c{module}\n{attribute}\n".encode()


def numbers(values):
    return MARK + b"".join(map(number, values)) + TUPLE


def ordered(*items):
    return name("collections", "OrderedDict") + EMPTY_TUPLE + REDUCE + MARK + b"".join(items) + SETITEMS


def storage(key, count, kind="FloatStorage"):
    return (
        MARK + text("storage") + name("torch", kind) + text(key) + text("cpu") + number(count) + TUPLE + PERSISTENT_ID
    )


def tensor(key, shape, strides=None, count=None, kind="FloatStorage", offset=0):
    strides = np.cumprod([1, *shape[:0:-1]])[::-1].tolist() if strides is None else strides
    count = int(np.prod(shape)) if count is None else count
    arguments = storage(key, count, kind) + number(offset) + numbers(shape) + numbers(strides) + FALSE + ordered()
    return name("torch._utils", "_rebuild_tensor_v2") + MARK + arguments + TUPLE + REDUCE


def state_dict(weights):
    """The program that torch.save writes for tensors: an OrderedDict, and the versions of modules as its state."""
    items = [text(key) + tensor(str(place), value.shape) for place, (key, value) in enumerate(weights.items())]
    metadata = (
        EMPTY_DICT
        + text("_metadata")
        + ordered(text("") + EMPTY_DICT + text("version") + number(1) + SETITEM)
        + SETITEM
    )
    return ordered(*items) + metadata + BUILD


def archive(program, entries=None, packed=()):
    """The bytes of a file of torch.save."""
    entries = (
        {f"data/{place}": value.tobytes() for place, value in enumerate(WEIGHTS.values())}
        if entries is None
        else entries
    )
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as file:
        for key, data in {"data.pkl": START + program + STOP, **entries}.items():
            file.writestr(f"archive/{key}", data, zipfile.ZIP_DEFLATED if key in packed else zipfile.ZIP_STORED)
    return target.getvalue()


@pytest.fixture
def load(tmp_path):
    def load_bytes(data):
        (tmp_path / "model.bin").write_bytes(data)
        return load_tensors(str(tmp_path / "model.bin"))

    return load_bytes


def test_a_dictionary_of_tensors_is_read_and_its_metadata_passed_over(load):
    tensors = load(archive(state_dict(WEIGHTS)))
    assert tensors.keys() == WEIGHTS.keys() and all((tensors[key] == value).all() for key, value in WEIGHTS.items())
    turned = load(archive(ordered(text("turned") + tensor("0", (3, 2), strides=(1, 3)))))
    assert (turned["turned"] == WEIGHTS["a.weight"].T).all()


def test_the_weights_in_a_checkpoint_of_lightning_are_read(load):
    """Beside them are numbers, and states of optimizers by the numbers of weights."""
    state = EMPTY_DICT + number(0) + EMPTY_DICT + text("exp_avg") + tensor("0", (2, 3)) + SETITEM + SETITEM
    rate = b"G" + struct.pack(">d", 0.5)
    program = EMPTY_DICT + b"".join(
        text(key) + value + SETITEM
        for key, value in {
            "epoch": number(3),
            "rate": rate,
            "state_dict": state_dict(WEIGHTS),
            "optimizer_states": state,
        }.items()
    )
    tensors = load(archive(program))
    assert tensors.keys() == WEIGHTS.keys() and all((tensors[key] == value).all() for key, value in WEIGHTS.items())
    remembered = text("state_dict") + b"q\x00" + state_dict(WEIGHTS) + SETITEM
    with pytest.raises(ValueError, match="a checkpoint of a training, with more than its state_dict: .* os.system"):
        load(archive(EMPTY_DICT + remembered + text("callback") + name("os", "system") + SETITEM))


@pytest.mark.parametrize("kind", ["Float", "BFloat16", "Long", "Char", "Short"])
def test_numbers_of_other_machines_and_kinds_are_read(load, kind):
    dtype = torch_pickle.STORAGES[f"torch.{kind}Storage"]
    values = np.array([1, -2, 100], dtype)
    swapped = b"".join(values[place : place + 1].tobytes()[::-1] for place in range(3))
    program = ordered(text("a") + tensor("0", (3,), kind=f"{kind}Storage"))
    read = load(archive(program, {"data/0": swapped, "byteorder": b"big"}))["a"]
    assert read.dtype == dtype and (read == values).all()
    assert (load(archive(program, {"data/0": values.tobytes(), "byteorder": b"little"}))["a"] == values).all()


def test_no_state_is_given_to_a_storage(load):
    program = (
        name("torch", "BFloat16Storage")
        + MARK
        + number(3)
        + text("<")
        + b"NNN"
        + number(-1)
        + number(8)
        + number(0)
        + TUPLE
        + BUILD
    )
    before = np.array([1.5, -2.0], ml_dtypes.bfloat16)
    with pytest.raises(ValueError, match=r"model.bin: refused: .*convert to safetensors"):
        load(archive(program))
    assert np.dtype(ml_dtypes.bfloat16).itemsize == 2 and before.astype("float32").tolist() == [1.5, -2.0]


@pytest.mark.parametrize(
    "program, reason",
    [
        (name("os", "system") + MARK + text("true") + TUPLE + REDUCE, "this pickle file would run os.system"),
        (name("torch", "FloatTensor"), "this pickle file would run torch.FloatTensor"),
        (name("collections", "OrderedDict") + EMPTY_TUPLE + b"\x81", "a pickle file with the operation NEWOBJ"),
        (b"(ios\nsystem\n", "a pickle file with the operation INST"),
        (b"\x82\x01", "a pickle file with the operation EXT1"),
        (EMPTY_DICT + EMPTY_DICT + BUILD, "this pickle file gives a state to a dict"),
        (
            ordered() + EMPTY_DICT + text("other") + number(1) + SETITEM + BUILD,
            "this pickle file gives a state to a OrderedDict",
        ),
        (b"]", "a list with other values"),
        (EMPTY_DICT + text("a") + number(1) + SETITEM, "a dict with other values"),
        (EMPTY_DICT + text("a") + storage("0", 6) + SETITEM, "a dict with other values"),
        (EMPTY_DICT + number(1) + tensor("0", (2, 3)) + SETITEM, ".* keys that are not text"),
        (EMPTY_DICT + EMPTY_TUPLE + b"\x85" * 100_000 + b"N" + SETITEM, ".* keys that are not text"),
        (name("collections", "OrderedDict") + MARK + EMPTY_DICT + TUPLE + REDUCE, "damaged, TypeError"),
    ],
)
def test_other_operations_and_values_are_refused(load, program, reason):
    with pytest.raises(
        ValueError, match=f"model.bin: refused: {reason}.* expected a file of torch.save .*; convert to safetensors"
    ):
        load(archive(program))


def entry(program):
    return ordered(text("a") + program)


@pytest.mark.parametrize(
    "program, accepted",
    [
        (tensor("0", (1,) * 8), True),
        (tensor("0", (1,) * 9), False),  # dimensions
        (tensor("0", (6,), count=6), True),
        (tensor("0", (7,), count=6), False),  # numbers
        (tensor("0", (2,), count=6, strides=(5,)), True),
        (tensor("0", (2,), count=6, strides=(6,)), False),
        (tensor("0", (2,), count=6, strides=(-1,), offset=1), False),
        (tensor("0", (), strides=(), count=6, offset=5), True),
        (tensor("0", (), strides=(), count=6, offset=6), False),
        (tensor("0", (1,), count=6, offset=-1), False),
        (tensor("0", (5, 0), count=6, strides=(1, 1)), True),
        (tensor("0", (6,), strides=(1, 1), count=6), False),
    ],
)
def test_a_tensor_lies_in_its_storage_and_has_at_most_8_dimensions(load, program, accepted):
    data = {"data/0": np.arange(count_in(program), dtype="float32").tobytes()}
    if accepted:
        assert load(archive(entry(program), data))["a"].dtype == np.float32
    else:
        with pytest.raises(ValueError, match="convert to safetensors"):
            load(archive(entry(program), data))


def count_in(program):
    """The length of the first storage in a program."""
    place = program.index(text("cpu")) + len(text("cpu"))
    return struct.unpack_from("<i", program, place + 1)[0]


def test_products_of_shape_and_step_do_not_overflow(load):
    huge = b"\x8a\x06" + (2**32).to_bytes(6, "little")
    # the last number lies at 2^64
    view = MARK + b"\x8a\x06" + (2**32 + 1).to_bytes(6, "little") + TUPLE + MARK + huge + TUPLE
    program = (
        name("torch._utils", "_rebuild_tensor_v2")
        + MARK
        + storage("0", 6)
        + number(0)
        + view
        + FALSE
        + ordered()
        + TUPLE
        + REDUCE
    )
    with pytest.raises(ValueError, match="reaches beyond its storage"):
        load(archive(entry(program), {"data/0": bytes(24)}))


def test_the_number_of_operations_is_bounded(load):
    rest = 5 + 2  # those of an empty dictionary, PROTO and STOP
    program = b"N" * (torch_pickle.MOST_OPERATIONS - rest) + ordered()
    assert load(archive(program)) == {}
    with pytest.raises(ValueError, match="more than 262,144 operations"):
        load(archive(b"N" + program))


def test_a_parameter_is_its_tensor(load):
    program = (
        name("torch._utils", "_rebuild_parameter") + MARK + tensor("0", (2, 3)) + b"\x88" + ordered() + TUPLE + REDUCE
    )
    assert (load(archive(entry(program)))["a"] == WEIGHTS["a.weight"]).all()


def test_entries_and_tensors_claim_no_more_than_the_file_holds(load):
    million = np.zeros(1 << 20, "float32")
    one = ordered(text("a") + tensor("0", (1 << 20,)))
    with pytest.raises(
        ValueError, match=r"archive/data/0: expected a stored entry, as torch.save writes it, got a packed one"
    ):
        load(archive(one, {"data/0": np.random.default_rng(0).bytes(4 << 20)}, packed=["data/0"]))
    with pytest.raises(ValueError, match=r"archive/data.pkl: expected a stored entry"):
        load(archive(one, packed=["data.pkl"]))
    for content in (bytes(8), bytes(4 * (1 << 20) - 1)):
        with pytest.raises(
            ValueError, match="archive/data/0: expected 4,194,304 bytes, got|more than the file's bytes"
        ):
            load(archive(one, {"data/0": content}))
    data = bytearray(archive(one, {"data/0": million.tobytes()}))
    for place in (data.find(b"PK\x01\x02", data.find(b"PK\x01\x02") + 1) + 20, data.find(b"PK\x03\x04", 10) + 18):
        data[place : place + 8] = struct.pack("<II", 1 << 31, 1 << 31)
    with pytest.raises(ValueError, match="convert to safetensors"):
        load(bytes(data))
    # 40 GB from one number
    with pytest.raises(ValueError, match="tensors that take more than 4 times the bytes of the file"):
        load(
            archive(
                ordered(text("a") + tensor("0", (100_000, 100_000), strides=(0, 0), count=1)), {"data/0": b"\0" * 4}
            )
        )
    many = [text(str(place)) + tensor("0", (1000,), count=2000, offset=place) for place in range(900)]
    with pytest.raises(ValueError, match="tensors that take more than 4 times"):
        load(archive(ordered(*many), {"data/0": b"\0" * 8000}))
    # one tensor of many names, as shared layers have
    tied = [text(str(place)) + tensor("0", (2000,)) for place in range(100)]
    assert len({id(value) for value in load(archive(ordered(*tied), {"data/0": b"\0" * 8000})).values()}) == 1


def damaged(rng):
    """A file of torch.save, new or older, with some bytes changed, cut out, doubled or left off: anywhere, or in the
    program alone.
    """

    def hurt(data):
        data = bytearray(data)
        for _ in range(rng.integers(1, 4)):
            data = data or bytearray(1)
            place, length = int(rng.integers(len(data))), int(rng.integers(1, 9))
            kind = rng.integers(5)
            if kind == 0:
                data[place] ^= 1 << int(rng.integers(8))
            elif kind == 1:
                data[place] = int(rng.integers(256))
            elif kind == 2:
                del data[place : place + length]
            elif kind == 3:
                data[place:place] = data[max(0, place - length) : place]
            else:
                del data[max(1, place) :]
        return bytes(data)

    kind = rng.integers(4)
    if kind == 0:
        return hurt(REAL_FILES[int(rng.integers(len(REAL_FILES)))].read_bytes())
    return (
        hurt(archive(state_dict(WEIGHTS)))
        if kind == 1
        else archive(hurt(state_dict(WEIGHTS)))
        if kind == 2
        else hurt(older(WEIGHTS))
    )


def older(weights):
    """The bytes of a file of torch.save before PyTorch 1.6."""
    machine = EMPTY_DICT + MARK + text("protocol_version") + number(1001) + text("little_endian") + b"\x88" + SETITEMS
    keys = b"](" + b"".join(text(str(place)) for place in range(len(weights))) + b"e"
    magic = b"\x8a\x0a" + torch_pickle.MAGIC.to_bytes(10, "little")
    programs = (magic, number(torch_pickle.VERSION), machine, state_dict(weights), keys)
    return b"".join(START + program + STOP for program in programs) + b"".join(
        struct.pack("<q", value.size) + value.tobytes() for value in weights.values()
    )


def generated(rng):
    """A file whose program is a sequence of operations, most of them known and in an order that may make sense."""
    tensors = [
        tensor("0", (2, 3)),
        tensor("1", (2,)),
        storage("0", 6),
        storage("0", 6, "LongStorage"),
        numbers((2, 3)),
        text("a"),
        ordered(),
        tensor(
            "0", rng.integers(0, 5, rng.integers(10)).tolist(), rng.integers(0, 5, rng.integers(10)).tolist(), count=6
        ),
    ]
    operations = [
        START,
        MARK,
        TUPLE,
        EMPTY_TUPLE,
        REDUCE,
        BUILD,
        PERSISTENT_ID,
        EMPTY_DICT,
        SETITEM,
        SETITEMS,
        FALSE,
        b"N",
        b"\x85",
        b"\x86",
        b"]",
        b"a",
        b"e",
        b"q\0",
        b"q\1",
        b"h\0",
        b"h\1",
        b"(t\x85" * 5,
        number(int(rng.integers(-2, 2**31))),
        *tensors,
    ]
    program = b"".join(operations[place] for place in rng.integers(len(operations), size=rng.integers(60)))
    return archive(
        state_dict(WEIGHTS)[:-1] + program if rng.integers(2) else EMPTY_DICT + text("a") + program + SETITEM
    )


def read_damaged(load, count, make, seed):
    """Reads so many files; each takes at most 1 s and 1 s for each MB. Warm: the first one's import takes longer."""
    rng, ends = np.random.default_rng(seed), collections.Counter()
    for _ in range(count):
        data, start = make(rng), time.process_time()
        try:
            assert all(np.asarray(value).sum() is not None for value in load(data).values())  # touches every number
            ends["read"] += 1
        except ValueError as error:
            assert (
                "\n" not in str(error)
                and "model.bin: refused: " in str(error)
                and "convert to safetensors" in str(error)
            )
            ends["refused"] += 1
        assert time.process_time() - start < 1 + len(data) / 1e6
    return ends


@pytest.mark.parametrize("path", REAL_FILES, ids=lambda path: path.stem)
def test_files_of_several_versions_of_pytorch_are_read(load, path):
    tensors = {name: np.asarray(value, "float32") for name, value in load(path.read_bytes()).items()}
    assert {name: value.tolist() for name, value in tensors.items()} == {
        "weight": [[0, 1, 2], [3, 4, 5]],
        "bias": [1.5, -2],
        "turned": [[0, 3], [1, 4], [2, 5]],
        "half": [0.5, -1],
        "brain": [0.5, -1],
        "ids": [[7, 8]],
        "parameter": 3,
    }


def test_older_files_are_read(load):
    assert all((load(older(WEIGHTS))[key] == value).all() for key, value in WEIGHTS.items())


@pytest.mark.parametrize("make", [damaged, generated])
def test_damaged_files_end_in_one_line(load, make):
    assert read_damaged(load, 300, make, 1)["refused"] > 180


@pytest.mark.slow
@pytest.mark.parametrize("make, count, refused", [(damaged, 20_000, 12_000), (generated, 2_000, 1_500)])
def test_many_damaged_files_end_in_one_line_and_take_little_memory(load, make, count, refused):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert read_damaged(load, count, make, 2)["refused"] > refused
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KB


HOSTILE = {
    "a key of nested tuples": EMPTY_DICT + EMPTY_TUPLE + b"\x85" * 1_000_000 + b"Ns",
    "tuples that double": EMPTY_TUPLE
    + b"q\0"
    + b"".join(b"(h%ch%ctq%c" % (i, i, i + 1) for i in range(60))
    + b"q\x70}h\x70Ns",
    "a long tuple as arguments, again and again": MARK
    + b"N" * 100_000
    + b"tq\0"
    + (name("collections", "OrderedDict") + b"h\0R") * 30_000,
    "a long tuple as a reference": MARK + b"N" * 100_000 + b"tq\0" + b"h\0Q" * 30_000,
    "a long tuple as a shape": name("torch._utils", "_rebuild_tensor_v2")
    + b"("
    + storage("0", 6)
    + b"K\0("
    + b"K\1" * 100_000
    + b"tq\0h\0\x89"
    + ordered()
    + b"tR",
    "an empty tensor of 2^40 rows as arguments": name("torch._utils", "_rebuild_tensor_v2")
    + b"("
    + storage("0", 6)
    + b"K\0(\x8a\x06"
    + (2**40).to_bytes(6, "little")
    + b"K\0t(K\1K\1t\x89"
    + ordered()
    + b"tRq\0"
    + name("collections", "OrderedDict")
    + b"h\0R",
    "a dictionary that holds itself": EMPTY_DICT + b"q\0" + text("a") + b"h\0s",
    "a million operations": b"(t" * 500_000,
    "a number of 2,040 bits": EMPTY_DICT + text("a") + b"\x8a\xff" + b"\x7f" * 255 + b"s",
}


@pytest.mark.parametrize("program", HOSTILE.values(), ids=HOSTILE)
def test_small_hostile_files_end_soon(load, program):
    data, start = archive(program, {"data/0": bytes(24)}), time.process_time()
    with pytest.raises(ValueError, match="model.bin: refused: .*convert to safetensors"):
        load(data)
    assert time.process_time() - start < 1 + len(data) / 1e6
