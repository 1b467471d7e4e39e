"""A small run of each of the core's uses loads the modules that `reach.py` reads in the imports, within 5 %."""

import json
import os
import subprocess
import sys

import pytest
import reach
import training_cases

SHARE = 0.05
# Runs a command as `python -m` does, and writes which modules of the package are loaded when it ends.
RUN = """
import atexit, json, runpy, sys
names = lambda: [name for name in sys.modules if name.startswith("official_bert")]
atexit.register(lambda: json.dump(names(), open("loaded.json", "w")))
sys.argv = sys.argv[1:]
runpy.run_module(f"official_bert.{sys.argv[0]}", run_name="__main__", alter_sys=True)
"""
TRAINING = ("--config=tiny.yaml", "--cache_dir=cache", "--set=options.max_seq_length=24")
PAIRS = f"--data_dir={training_cases.TESTS / 'fixtures' / 'glue' / 'MRPC'}"
RECORDS = ("--input_file=masked-train.tfrecord", "--set=options.max_predictions_per_seq=4")
FEATURES = ("--input_file=tags-test.txt", "--output_file=rows.jsonl", "--layers=-1", "--max_seq_length=24")
SQUAD = ("--train_file=answered-train.json", "--set=task=squad", "--max_query_length=8", "--doc_stride=8")
# By use, in an order in which each finds the model that it needs. No run is evaluated: reports are an option.
RUNS = {
    "pretraining": ("run_pretraining", *TRAINING, *RECORDS, "--output_dir=words"),
    "glue": ("run_classifier", *TRAINING, "--task_name=mrpc", "--do_train", PAIRS, "--output_dir=pairs"),
    "squad": ("run_squad", *TRAINING, "--do_train", *SQUAD, "--output_dir=answers"),
    "ner": ("run_finetuning", *TRAINING, "--task=ner", "--train_file=tags-train.txt", "--output_dir=tags"),
    "features": ("extract_features", *FEATURES, "--init_checkpoint=words"),
    "export": ("run_export", "--checkpoint=pairs", "--output=exported"),
    "predict": ("run_predict", "--model=pairs", "he said\tthe men"),
}


@pytest.mark.slow
def test_small_runs_load_what_their_uses_reach(tmp_path):
    assert RUNS.keys() == reach.USES.keys()
    training_cases.write_data(tmp_path)
    training_cases.write_records(tmp_path)
    shares = {}
    for use, arguments in RUNS.items():
        done = subprocess.run(
            [sys.executable, "-c", RUN, *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(reach.ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (use, done.stderr[-600:])
        own = {f"official_bert.{module}" for module in reach.USES[use][0]}  # the command is loaded as __main__
        loaded = own | set(filter(reach.path_of, json.loads((tmp_path / "loaded.json").read_text())))
        shares[use] = sum(map(reach.tokens, loaded)) / sum(map(reach.tokens, reach.reached(reach.USES[use][0])))
    print(shares)
    assert {use: share for use, share in shares.items() if abs(share - 1) > SHARE} == {}
