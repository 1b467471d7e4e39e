"""Names that a folder's own files give stay in that folder."""

import os

import pytest

from official_bert.storage import files


@pytest.fixture
def folder(tmp_path):
    for name in ("model/part", "model/below/part", "beside/secret", "model-2/part"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(name)
    return tmp_path / "model"


@pytest.mark.parametrize(
    "name", ["part", "below/part", "./part", "below", "", "not there", "..part", "part..", "Größe 1", "below//part"]
)
def test_names_inside_the_folder_are_joined(folder, name):
    assert files.path_inside(str(folder), name, "x") == os.path.join(folder, name)


@pytest.mark.parametrize(
    "name",
    [
        "/etc/hostname",
        "..",
        "../beside/secret",
        "below/../part",
        "below/../../beside/secret",
        "below/..",
        "../model/part",
        "//server/part",
        "C:\\secret",
        "C:secret",
        "c:/secret",
        "..\\beside\\secret",
        "below\\part",
        "\\\\server\\part",
        "file:///etc/hostname",
        "gs://x/y",
        "part\0",
        "part\n",
        "\0",
        "\ud800",
        None,
        3,
        ["part"],
        {"a": 1},
        True,
    ],
)
def test_other_names_are_refused_in_one_line(folder, name):
    with pytest.raises(
        ValueError, match=r"^model.json: weight: expected the name of a file inside the folder, got .*$"
    ) as caught:
        files.path_inside(str(folder), name, "model.json: weight")
    assert "\n" not in str(caught.value) and type(caught.value) is ValueError


def test_links_may_not_leave_the_folder(folder):
    (folder / "good").symlink_to("below/part")
    assert files.path_inside(str(folder), "good", "x") == f"{folder}/good"
    for name, target in {
        "file": "../beside/secret",
        "out": "../beside",
        "absolute": "/etc/hostname",
        "sibling": "../model-2",
        "twice": "file",
        "gone": "../nothing",
    }.items():
        (folder / name).symlink_to(target)
        with pytest.raises(
            ValueError, match="^x: expected the name of a file inside the folder, got '.*', a link to /"
        ):
            files.path_inside(str(folder), name, "x")
    with pytest.raises(ValueError, match="'out/secret', a link to"):
        files.path_inside(str(folder), "out/secret", "x")


def test_a_folder_that_is_reached_by_a_link_or_is_the_current_one_holds_its_files(folder, tmp_path, monkeypatch):
    (tmp_path / "link").symlink_to("model")
    assert files.path_inside(str(tmp_path / "link"), "part", "x") == f"{tmp_path}/link/part"
    monkeypatch.chdir(folder)
    assert files.path_inside("", "part", "x") == "part"


def test_links_of_the_hubs_cache_lead_to_the_blobs_of_the_same_repository_alone(tmp_path):
    """The layout is that of huggingface_hub: models--OWNER--NAME/snapshots/COMMIT/FILE -> ../../blobs/HASH."""
    snapshot = tmp_path / "models--o--n" / "snapshots" / "0123"
    for path in (
        snapshot / "1_Pooling",
        tmp_path / "models--o--n/blobs",
        tmp_path / "models--o--other/blobs",
        tmp_path / "blobs",
    ):
        path.mkdir(parents=True)
        (path / "ab12").write_text("x")
    for name, target in {"part": "../../blobs/ab12", "1_Pooling/config.json": "../../../blobs/ab12"}.items():
        (snapshot / name).symlink_to(target)
        assert files.path_inside(str(snapshot), name, "x") == f"{snapshot}/{name}"
    for name, target in {
        "other": "../../../models--o--other/blobs/ab12",
        "above": "../../../blobs/ab12",
        "refs": "../../refs",
    }.items():
        (snapshot / name).symlink_to(target)
        with pytest.raises(ValueError, match=f"'{name}', a link to"):
            files.path_inside(str(snapshot), name, "x")
    (tmp_path / "models--o--n/blobs/ab12").unlink()  # a blob that is itself a link out
    (tmp_path / "models--o--n/blobs/ab12").symlink_to("/etc/hostname")
    with pytest.raises(ValueError, match="'part', a link to /etc/hostname"):
        files.path_inside(str(snapshot), "part", "x")
