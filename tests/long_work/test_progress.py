"""Progress: lines from the first second on, with the time left."""

import math
import re
import time

from official_bert.long_work import progress


def test_lines_come_while_the_work_itself_reports_nothing(capfd, monkeypatch):
    monkeypatch.setattr(progress, "FIRST_LINE", 0.2)
    begin = time.monotonic()
    with progress.Reporter() as reporter:
        reporter.show("compiling", 0)
        time.sleep(0.5)
        reporter.show("compiling", 0.25)
        time.sleep(0.5)
        reporter.show("compiling", 1)
    lines = capfd.readouterr().err.splitlines()
    assert lines[0] == "compiling: 0%"
    # A quarter was done after 0.5 s, or more on a busy machine: three times as long is left.
    took = time.monotonic() - begin
    left = [int(found[1]) for line in lines if (found := re.fullmatch(r"compiling: 25%, about (\d+) s left", line))]
    assert left and 1 < min(left) <= max(left) <= math.ceil(3 * took)
    assert 1 <= float(re.fullmatch(r"compiling: (\d+\.\d) s", lines[-1])[1]) <= took + 0.1


def test_a_short_stage_is_one_line(capfd):
    with progress.Reporter() as reporter:
        for share in (0.5, 1):
            reporter.show("writing", share)
    assert capfd.readouterr().err.splitlines() == ["writing: 0.0 s"]
