"""Ten minutes of requests, right and wrong, small and large: the server goes on answering, and its memory does not
grow.
"""

import os
import re
import signal
import statistics
import subprocess
import sys
import time

import pytest
from memory import anonymous_memory

from official_bert.config import Config, TokenizerConfig
from official_bert.serving import export
from official_bert.tasks.texts.served import ServedClassifier

MINUTES = float(os.environ.get("LOAD_TEST_MINUTES", "10"))
WARM_UP = 0.15  # of the time: thread pools, arenas and caches come to their size
MOST_GROWTH = 0.02
SAMPLE_SECONDS = 2.0


@pytest.mark.slow
@pytest.mark.speed
def test_memory_stays_what_it_is_under_mixed_load(root, classifier, graph_tokenizer, small_config, golden, tmp_path):
    served = ServedClassifier(classifier(2), graph_tokenizer, 32, labels=("no", "yes"))
    config = Config(model=small_config, tokenizer=TokenizerConfig(vocab_file=str(golden / "vocab_uncased.txt")))
    export.export(served, config, export.ExportOptions(output=str(tmp_path / "model"), batch_sizes=(1, 8, 32)))
    (tmp_path / "tokens").write_text("a-token-of-enough-letters-and-more\n")
    tokens = f"--api_token_file={tmp_path}/tokens"
    server = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "official_bert.serve",
            f"--model_base_path={tmp_path}/model/text",
            "--rest_api_port=0",
            "--port=0",
            tokens,
            f"--batching_parameters_file={root}/deploy/batching.config",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    loads = []
    try:
        url, target = re.search(
            r"(http://127\.0\.0\.1:\d+); gRPC: (127\.0\.0\.1:\d+)", server.stdout.readline()
        ).groups()
        common = [
            sys.executable,
            str(root / "deploy/load_test.py"),
            f"--url={url}",
            f"--seconds={60 * MINUTES}",
            "--concurrency=3",
            "--rows=1,3,8,32",
            tokens,
        ]
        loads = [
            subprocess.Popen([*common, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for more in (["--mistakes=0.3"], [f"--grpc={target}"])
        ]
        began, samples = time.monotonic(), []
        while any(load.poll() is None for load in loads):
            samples.append((time.monotonic() - began, anonymous_memory(server.pid)))
            time.sleep(SAMPLE_SECONDS)
        told = [load.communicate() for load in loads]
        assert [load.returncode for load in loads] == [0, 0], told
        assert "MISTAKE ANSWERED" not in told[0][0] and "refused as documented" in told[0][0], told[0][0]
        total = samples[-1][0]
        early = statistics.median(size for when, size in samples if WARM_UP * total < when <= 2 * WARM_UP * total)
        late = statistics.median(size for when, size in samples if when > (1 - WARM_UP) * total)
        print(
            f"\n{told[0][0]}{told[1][0]}RssAnon {early / 1024:.1f} MB, then {late / 1024:.1f} MB: "
            f"{late / early - 1:+.2%}"
        )
        assert late / early - 1 < MOST_GROWTH
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
    finally:
        for process in (*loads, server):
            process.kill()
            process.communicate()


@pytest.mark.parametrize("where", ["--url=http://192.0.2.1:8501", "--grpc=192.0.2.1:8500"])
def test_load_is_sent_to_this_machine_only(root, where):
    done = subprocess.run(
        [sys.executable, str(root / "deploy/load_test.py"), where],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 1 and "error: 192.0.2.1: expected an address of this machine" in done.stderr
