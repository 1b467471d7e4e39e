"""Signals end a command within two seconds, whether Python can handle them or not."""

import signal
import subprocess
import sys
import time

import pytest

BEGIN = "from official_bert.long_work import interruption; interruption.end_on_signals('nothing was written')\n"
# Compiled code (here a key derivation) keeps the main thread from handling signals; a thread that never ends keeps the
# process from ending.
DEAF = BEGIN + "import hashlib; print('ready', flush=True); hashlib.pbkdf2_hmac('sha256', b'', b'', 2**31 - 1)\n"
HANGING = (
    BEGIN
    + """
import concurrent.futures, time
with concurrent.futures.ThreadPoolExecutor() as pool:
    pool.submit(time.sleep, 60)
    print('ready', flush=True)
    time.sleep(60)
"""
)
ORDERLY = (
    BEGIN
    + """
import time
try:
    print('ready', flush=True)
    time.sleep(60)
finally:
    print('cleaned up', flush=True)
"""
)

REPLACING = (
    BEGIN
    + """
import time
try:
    print('ready', flush=True)
    time.sleep(60)
except SystemExit:
    raise TypeError('expected str')
"""
)

# What a destructor raises goes no further, and Python prints it as a traceback.
IN_A_DESTRUCTOR = (
    BEGIN
    + """
import time
class Slow:
    def __del__(self):
        print('ready', flush=True)
        time.sleep(0.5)
try:
    Slow()
    time.sleep(60)
finally:
    print('cleaned up', flush=True)
"""
)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize(
    "program",
    [DEAF, HANGING, ORDERLY, REPLACING, IN_A_DESTRUCTOR],
    ids=["deaf", "hanging", "orderly", "replacing", "in a destructor"],
)
def test_a_signal_ends_the_process_within_two_seconds(program, number):
    process = subprocess.Popen(
        [sys.executable, "-c", program], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout.readline() == "ready\n"
    begin = time.monotonic()
    process.send_signal(number)
    output, errors = process.communicate(timeout=20)
    assert time.monotonic() - begin < 5  # two seconds, and more for a busy machine; left alone it runs for a minute
    assert process.returncode == 1 and errors == f"error: stopped by {number.name}; nothing was written\n"
    assert output == ("cleaned up\n" if program in (ORDERLY, IN_A_DESTRUCTOR) else "")
