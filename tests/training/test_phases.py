"""The steps of a run's epochs."""

import types

import pytest

from official_bert.config import TrainingConfig
from official_bert.training.phases import epoch_steps


@pytest.mark.parametrize(("rows", "batch_size", "epochs", "up", "down"), [
    (3668, 32, 3.0, 345, 343),  # MRPC: 2018 logs "Num steps = 343"
    (87599, 32, 2.0, 5476, 5474), (392702, 32, 3.0, 36816, 36815), (64, 32, 1.5, 3, 3), (4, 32, 1.0, 1, 0)])
def test_2018_rounds_rows_times_epochs_down_where_each_epoch_is_whole_here(rows, batch_size, epochs, up, down):
    source = types.SimpleNamespace(rows=rows, batch_size=batch_size, batches_per_epoch=-(-rows // batch_size))
    settings = [TrainingConfig(batch_size=batch_size, epochs=epochs, epoch_rounding=rounding) for rounding in ("up", "down")]
    assert [epoch_steps(one, source) for one in settings] == [up, down]
