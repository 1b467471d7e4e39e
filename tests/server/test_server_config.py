"""TF Serving's configuration files as the embedded server reads them."""

import pytest

from official_bert.server.server_config import ServedModelConfig, read_batching, read_metrics_path, read_models


def written(tmp_path, text):
    path = tmp_path / "file.config"
    path.write_text(text)
    return str(path)


def test_models_policies_and_labels(tmp_path):
    path = written(
        tmp_path,
        """
        model_config_list {
          config { name: 'a' base_path: '/models/a' model_platform: 'tensorflow' }
          config { name: 'b' base_path: '/models/b' model_version_policy { latest { num_versions: 3 } } }
          config { name: 'c' base_path: '/models/c' model_version_policy { all {} } }
          config { name: 'd' base_path: '/models/d' model_version_policy { specific { versions: 42 versions: 43 } }
                   version_labels { key: 'stable' value: 42 } }
        }""",
    )
    assert read_models(path) == [
        ServedModelConfig(name="a", base_path="/models/a"),
        ServedModelConfig(name="b", base_path="/models/b", latest=3),
        ServedModelConfig(name="c", base_path="/models/c", policy="all"),
        ServedModelConfig(name="d", base_path="/models/d", policy="specific", specific=(42, 43), labels={"stable": 42}),
    ]


def test_batching_parameters(tmp_path):
    found = read_batching(
        written(
            tmp_path,
            """
        max_batch_size { value: 64 }  # rows
        batch_timeout_micros { value: 2000 }
        allowed_batch_sizes: 8
        allowed_batch_sizes: 64
        pad_variable_length_inputs: true
        enable_large_batch_splitting { value: false }
        thread_pool_name { value: "mine" }""",
        )
    )
    assert (found.max_batch_size, found.batch_timeout_micros, found.allowed_batch_sizes) == (64, 2000, (8, 64))
    assert (
        found.pad_variable_length_inputs and not found.enable_large_batch_splitting and found.thread_pool_name == "mine"
    )
    assert found.num_batch_threads == 2  # not given
    assert not read_batching(written(tmp_path, "")).enable_large_batch_splitting


def test_monitoring(tmp_path):
    assert read_metrics_path(written(tmp_path, 'prometheus_config { enable: true path: "/metrics" }')) == "/metrics"
    assert (
        read_metrics_path(written(tmp_path, "prometheus_config { enable: true }")) == "/monitoring/prometheus/metrics"
    )
    assert read_metrics_path(written(tmp_path, "")) == ""


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (read_batching, "max_batch_size: 32", r"file.config:1:"),  # the trap: it is a message with a value
        (read_batching, "max_batches { value: 32 }", r'no field named "max_batches"'),
        (read_batching, "max_batch_size { value: 32 } allowed_batch_sizes: 16", r"the last of them 32, got \[16\]"),
        (
            read_batching,
            "max_batch_size { value: 32 } enable_large_batch_splitting { value: true } allowed_batch_sizes: 16 "
            "max_execution_batch_size { value: 16 }",
            r"the last of them 32, got \[16\]",
        ),
        (read_models, "", "expected models of different names, got"),
        (read_models, "model_config_list { config { name: 'a' } }", "model 1: expected a name and a base_path"),
        (
            read_models,
            "model_config_list { config { name: 'a' base_path: '/a' model_platform: 'caffe' } }",
            "got 'caffe'",
        ),
        (
            read_models,
            "model_config_list { config { name: 'a' base_path: '/a' } config { name: 'a' base_path: '/b' } }",
            r"different names, got \['a', 'a'\]",
        ),
        (
            read_models,
            "model_config_list { config { name: 'a' base_path: '/a' model_version_policy { specific {} } } }",
            "expected versions",
        ),
        (read_metrics_path, 'prometheus_config { enable: true path: "metrics" }', "expected a path that begins with /"),
    ],
)
def test_mistakes_name_the_file(tmp_path, read, text, message):
    path = written(tmp_path, text)
    with pytest.raises(ValueError, match=message) as caught:
        read(path)
    assert str(caught.value).startswith(path)
    with pytest.raises(ValueError, match="no such file"):
        read(path + ".none")
