"""Progress: lines from the first second on, with the time left."""

import re
import time

from official_bert.data.long_work import progress


def test_lines_come_while_the_work_itself_reports_nothing(capfd, monkeypatch):
    monkeypatch.setattr(progress, "FIRST_LINE", 0.2)
    with progress.Reporter() as reporter:
        reporter.show("compiling", 0)
        time.sleep(0.5)
        reporter.show("compiling", 0.25)
        time.sleep(0.5)
        reporter.show("compiling", 1)
    lines = capfd.readouterr().err.splitlines()
    assert lines[0] == "compiling: 0%"
    # a quarter was done after 0.5 s or somewhat more: three times as long is left
    assert any(re.fullmatch(r"compiling: 25%, about [2-4] s left", line) for line in lines)
    assert re.fullmatch(r"compiling: 1\.\d s", lines[-1])


def test_a_short_stage_is_one_line(capfd):
    with progress.Reporter() as reporter:
        for share in (0.5, 1):
            reporter.show("writing", share)
    assert capfd.readouterr().err.splitlines() == ["writing: 0.0 s"]
