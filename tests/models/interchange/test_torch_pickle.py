"""The reader of PyTorch files: hostile and damaged files end in one ValueError, and change nothing in the process."""

import collections
import io
import resource
import struct
import zipfile

import ml_dtypes
import numpy as np
import pytest

from official_bert.models.interchange.projects.torch_pickle import load_tensors

# Opcodes of pickle's protocol 2, written out: https://docs.python.org/3/library/pickletools.html
START, STOP, MARK, TUPLE, EMPTY_TUPLE, REDUCE, BUILD, PERSISTENT_ID = b"\x80\x02", b".", b"(", b"t", b")", b"R", b"b", b"Q"
EMPTY_DICT, SETITEM, SETITEMS, FALSE = b"}", b"s", b"u", b"\x89"
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
    return MARK + text("storage") + name("torch", kind) + text(key) + text("cpu") + number(count) + TUPLE + PERSISTENT_ID


def tensor(key, shape, strides=None, count=None, kind="FloatStorage", offset=0):
    strides = np.cumprod([1, *shape[:0:-1]])[::-1].tolist() if strides is None else strides
    count = int(np.prod(shape)) if count is None else count
    arguments = storage(key, count, kind) + number(offset) + numbers(shape) + numbers(strides) + FALSE + ordered()
    return name("torch._utils", "_rebuild_tensor_v2") + MARK + arguments + TUPLE + REDUCE


def state_dict(weights):
    """The program that torch.save writes for tensors: an OrderedDict, and the versions of modules as its state."""
    items = [text(key) + tensor(str(place), value.shape) for place, (key, value) in enumerate(weights.items())]
    metadata = EMPTY_DICT + text("_metadata") + ordered(text("") + EMPTY_DICT + text("version") + number(1) + SETITEM) + SETITEM
    return ordered(*items) + metadata + BUILD


def archive(program, entries=None, packed=()):
    """The bytes of a file of torch.save."""
    entries = {f"data/{place}": value.tobytes() for place, value in enumerate(WEIGHTS.values())} if entries is None else entries
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


def test_no_state_is_given_to_a_storage(load):
    program = name("torch", "BFloat16Storage") + MARK + number(3) + text("<") + b"NNN" + number(-1) + number(8) + number(0) + TUPLE + BUILD
    before = np.array([1.5, -2.0], ml_dtypes.bfloat16)
    with pytest.raises(ValueError, match=r"model.bin: refused: this pickle file gives a state to a Name"):
        load(archive(program))
    assert np.dtype(ml_dtypes.bfloat16).itemsize == 2 and before.astype("float32").tolist() == [1.5, -2.0]


@pytest.mark.parametrize("program, told", [
    (name("os", "system") + MARK + text("true") + TUPLE + REDUCE, "would run os.system"),
    (name("torch", "FloatTensor"), "would run torch.FloatTensor"),
    (name("collections", "OrderedDict") + EMPTY_TUPLE + b"\x81", "with the operation NEWOBJ"),
    (b"(ios\nsystem\n", "with the operation INST"), (b"\x82\x01", "with the operation EXT1"), (b"]", "with the operation EMPTY_LIST"),
    (EMPTY_DICT + EMPTY_DICT + BUILD, "gives a state to a dict")])
def test_other_operations_are_refused_before_anything_is_built(load, program, told):
    with pytest.raises(ValueError, match=f"model.bin: refused: .*pickle file {told}"):
        load(archive(program))


def test_entries_and_tensors_claim_no_more_than_the_file_holds(load):
    million = np.zeros(1 << 20, "float32")
    one = ordered(text("a") + tensor("0", (1 << 20,)))
    with pytest.raises(ValueError, match=r"archive/data/0: expected a stored entry, as torch.save writes it, got a packed one"):
        load(archive(one, {"data/0": million.tobytes()}, packed=["data/0"]))
    with pytest.raises(ValueError, match=r"archive/data.pkl: expected a stored entry"):
        load(archive(one, packed=["data.pkl"]))
    data = bytearray(archive(one, {"data/0": b"\0" * 8}))
    for place in (data.find(b"PK\x01\x02", data.find(b"PK\x01\x02") + 1) + 20, data.find(b"PK\x03\x04", 10) + 18):
        data[place:place + 8] = struct.pack("<II", 1 << 31, 1 << 31)
    with pytest.raises(ValueError, match=r"archive/data/0: expected at most [0-9,]+ bytes .* the entry claims 2,147,483,648"):
        load(bytes(data))
    with pytest.raises(ValueError, match="storage 0 has 8 bytes, too few for 1,048,576 numbers"):
        load(archive(one, {"data/0": b"\0" * 8}))
    with pytest.raises(ValueError, match="its tensors take more than 4 times the .* bytes of the file"):  # 40 GB from one number
        load(archive(ordered(text("a") + tensor("0", (100_000, 100_000), strides=(0, 0), count=1)), {"data/0": b"\0" * 4}))
    many = [text(str(place)) + tensor("0", (1000,), count=2000, offset=place) for place in range(900)]
    with pytest.raises(ValueError, match="its tensors take more than 4 times"):
        load(archive(ordered(*many), {"data/0": b"\0" * 8000}))
    tied = [text(str(place)) + tensor("0", (2000,)) for place in range(100)]  # one tensor of many names, as shared layers have
    assert len({id(value) for value in load(archive(ordered(*tied), {"data/0": b"\0" * 8000})).values()}) == 1


def damaged(rng):
    """A file of torch.save with some bytes changed, cut out, doubled or left off: anywhere, or in the program alone, with its checksum."""
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
                del data[place:place + length]
            elif kind == 3:
                data[place:place] = data[max(0, place - length):place]
            else:
                del data[max(1, place):]
        return bytes(data)
    if rng.integers(2):
        return hurt(archive(state_dict(WEIGHTS)))
    return archive(hurt(state_dict(WEIGHTS)))


def read_damaged(load, count, seed):
    rng, ends = np.random.default_rng(seed), collections.Counter()
    for _ in range(count):
        try:
            load(damaged(rng))
            ends["read"] += 1
        except ValueError as error:
            assert "\n" not in str(error) and "model.bin: " in str(error)
            ends["refused"] += 1
    return ends


def test_damaged_files_end_in_one_line(load):
    assert read_damaged(load, 400, 1)["refused"] > 240


@pytest.mark.slow
def test_12_000_damaged_files_end_in_one_line_and_take_little_memory(load):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert read_damaged(load, 12_000, 2)["refused"] > 7000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KB
