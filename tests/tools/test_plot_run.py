from commands import imported_tool, run_here


def plot(root, *arguments):
    return run_here("tools/plot_run.py", *arguments)


def test_losses_of_a_log_are_drawn(root, tmp_path):
    (tmp_path / "log.jsonl").write_text(
        '{"step": 10, "train/loss": 3.0}\n{"step": 20, "train/loss": 2.0}\n{"step": 20, "eval/loss": 2.5}\n'
    )
    done = plot(root, str(tmp_path), f"--output_file={tmp_path}/loss.svg", "--baseline=2.75")
    assert done.returncode == 0 and "loss over 20 steps" in done.stdout, done.stderr
    picture = (tmp_path / "loss.svg").read_text()
    assert all(
        f"<!-- {label} -->" in picture
        for label in (
            "training",
            "held out: 2.5 at step 20",
            "unigram distribution, held out",
            "training step",
            "loss",
            f"loss: {tmp_path.name}",
        )
    )


def test_several_runs_share_a_picture_and_losses_have_words_and_a_unit(root, tmp_path):
    for folder, value in (("a/small", 3.0), ("b/small", 4.0), ("base", 2.5)):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "log.jsonl").write_text(
            f'{{"step": 10, "train/mlm_loss": {value}}}\n{{"step": 10, "eval/mlm_loss": {value + 1}}}\n'
        )
    runs = [f"{tmp_path}/a/small", f"{tmp_path}/b/small/", f"{tmp_path}/base"]
    done = plot(root, *runs, f"--output_file={tmp_path}/loss.svg", "--name=mlm_loss", "--title=")
    assert done.returncode == 0 and "mlm_loss over 10 steps of 3 runs" in done.stdout, done.stderr
    picture = (tmp_path / "loss.svg").read_text()
    base = f"{tmp_path.name}/base"
    assert all(
        f"<!-- {label} -->" in picture
        for label in (
            "a/small, training",
            "a/small, held out: 4 at step 10",
            "b/small, held out: 5 at step 10",
            f"{base}, training",
            "masked-LM loss, nats",
        )
    )
    done = plot(root, f"{tmp_path}/base", f"--run={tmp_path}/base/", f"--output_file={tmp_path}/twice.svg")
    assert (
        done.returncode == 1
        and "error: expected different runs, got" in done.stderr
        and not (tmp_path / "twice.svg").exists()
    )
    done = plot(root, *runs, f"--output_file={tmp_path}/none.svg", "--name=accuracy")
    assert (
        done.returncode == 1
        and "holds no 'accuracy'; it has mlm_loss" in done.stderr
        and not (tmp_path / "none.svg").exists()
    )


def test_the_chosen_checkpoint_is_marked_and_no_label_overlaps_another(tmp_path):
    from matplotlib import pyplot

    points = {17: 0.21, 51: 0.027, 68: 0.0275}
    runs = {f"runs/{name * 20}": ({"train": points, "eval": points}, 51) for name in "abcdef"}
    with imported_tool("plot_run") as module:
        figure, axes = pyplot.subplots(figsize=(7, 8), layout="constrained")
        module.draw(axes, runs)
        legend = figure.legend(loc="outside lower center")
        figure.canvas.draw()
    texts = [text.get_window_extent() for text in [*legend.get_texts(), *axes.texts]]
    assert len(texts) == 12 and not any(one.overlaps(other) for one in texts for other in texts if one is not other)
    assert [line.get_xdata()[0] for line in axes.lines if line.get_markersize() == 9] == [51] * 6
    assert legend.get_texts()[1].get_text() == f"runs/{'a' * 20}, held out: 0.027 at step 51"
    pyplot.close(figure)


def test_of_a_step_that_was_logged_twice_the_later_value_counts_and_a_broken_line_does_not(tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text(
        '{"step": 10, "train/loss": 3.0}\n{"step": 20, "train/loss": 9.0}\n{"step": 10, "eval/loss": 4.0}\n'
        '{"step": 20, "train/loss": 2.0}\n{"step": 30, "train/lo'
    )
    with imported_tool("plot_run") as module:
        assert module.read_curves(str(log), "loss") == {"train": {10: 3.0, 20: 2.0}, "eval": {10: 4.0}}


def test_a_run_without_a_log_is_told(root, tmp_path):
    done = plot(root, str(tmp_path), f"--output_file={tmp_path}/loss.svg")
    assert done.returncode == 1 and "no such log" in done.stderr and "Traceback" not in done.stderr
    (tmp_path / "log.jsonl").write_text('{"step": 10, "train/loss": 3.0}\n')
    done = plot(root, str(tmp_path), f"--output_file={tmp_path}/loss.svg", "--name=mlm_loss")
    assert done.returncode == 1 and "holds no 'mlm_loss'" in done.stderr and not (tmp_path / "loss.svg").exists()


def test_a_removed_flag_is_read_if_it_is_off_and_otherwise_says_what_is_left(root, tmp_path):
    (tmp_path / "log.jsonl").write_text('{"step": 10, "train/loss": 3.0}\n')
    path = f"--output_file={tmp_path}/loss.svg"
    assert (
        plot(root, str(tmp_path), path, "--title=", "--baseline_label=unigram distribution, held out").returncode == 0
    )
    for given in (["--title=Mine"], ["--title", "Mine"], ["--title=", "--baseline_label=words"]):
        done = plot(root, str(tmp_path), path, *given)
        name = given[-1].partition("=")[0] if "=" in given[-1] else given[0]
        assert done.returncode == 1 and done.stderr.startswith(f"error: {name}: this flag was removed; ")
        assert done.stderr.count("\n") == 1
