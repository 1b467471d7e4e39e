"""What tests of trainings share."""

import contextlib
import signal

import pytest

from official_bert.training.logs.run_log import Watcher


@pytest.fixture
def stopped_at(monkeypatch):
    """Sends SIGTERM to this process in a context, when the metrics of a step are logged; the training ends the
    context by SystemExit, whose status it returns.
    """

    @contextlib.contextmanager
    def stopped(step):
        log = Watcher.training

        def logged(watcher, at, *metrics):
            if at == step:
                signal.raise_signal(signal.SIGTERM)
            log(watcher, at, *metrics)

        with monkeypatch.context() as patch:
            patch.setattr(Watcher, "training", logged)
            with pytest.raises(SystemExit) as status:
                yield status

    return stopped
