"""Mapped files have their place on the disk before anything is written to them."""

import errno
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from official_bert.data.array_files import make_array

BYTES = 300 * 1000 * 4


def assert_takes_its_place(path):
    make_array(path, (300, 1000))
    assert os.stat(path).st_blocks * 512 >= BYTES  # a sparse file takes 4,096 bytes
    array = np.load(path, mmap_mode="r+")
    assert array.shape == (300, 1000) and array.dtype == np.float32 and not array.any()


def test_a_new_array_is_zeros_that_take_their_place(tmp_path):
    assert_takes_its_place(str(tmp_path / "a.npy"))
    assert np.load(tmp_path / "a.npy").nbytes == BYTES
    array = make_array(str(tmp_path / "none.npy"), (0, 4))
    assert array.shape == (0, 4)


def test_it_takes_its_place_without_the_systems_call(tmp_path, monkeypatch):
    for number in (errno.EOPNOTSUPP, errno.EINVAL):

        def not_offered(*_, number=number):
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "posix_fallocate", not_offered)
        assert_takes_its_place(str(tmp_path / f"{number}.npy"))
    monkeypatch.delattr(os, "posix_fallocate")  # macOS
    assert_takes_its_place(str(tmp_path / "macos.npy"))


@pytest.mark.parametrize("without_call", [False, True])
def test_a_full_disk_is_an_error_and_no_signal(tmp_path, without_call):
    """On a file system of 1 MB; the old way, `open_memmap` alone, ends with SIGBUS there."""
    if (
        not shutil.which("mount")
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)], capture_output=True, check=False
        ).returncode
    ):
        pytest.skip("mounting a small file system is not permitted here")
    code = (
        "import os, sys; from official_bert.data.array_files import make_array\n"
        + "del os.posix_fallocate\n" * without_call
        + "make_array(sys.argv[1] + '/fits.npy', (100, 1000))[:] = 1\n"
        "try:\n    make_array(sys.argv[1] + '/large.npy', (200, 1000))[:] = 1\nexcept OSError as error:\n    "
        "print(error)\n"
    )
    try:
        done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
    assert (done.returncode, done.stdout) == (0, f"[Errno 28] No space left on device: '{tmp_path}/large.npy'\n"), (
        done.stderr
    )
