"""The recording of the walk plays within its limits."""

import pytest
from PIL import Image, ImageDraw

from dpsynth_assets_tests.web import recording
from dpsynth_assets_tests.web.recording import MOST_ON_THE_WAY, write_recording
from dpsynth_assets_tests.web.walk import Step


def page(path, words):
    image = Image.new("RGB", (320, 240), "white")
    ImageDraw.Draw(image).text((10, 10), words, fill="black")
    image.save(path)
    return path


@pytest.fixture
def steps(tmp_path):
    """Two steps, each of which showed nine pictures on the way."""
    (tmp_path / "frames").mkdir()
    for moment in range(9):
        for name in ("graph", "spend"):
            page(tmp_path / "frames" / f"{name}-{moment}.png", f"{name} {moment}")
    return [
        Step(name, page(tmp_path / f"{name}.png", name), 1.0, None) for name in ("graph", "spend")
    ]


def test_a_recording_holds_some_pictures_on_the_way_and_rests_at_each_step(steps, tmp_path):
    write_recording(steps, tmp_path / "frames", tmp_path / "walk.gif")
    with Image.open(tmp_path / "walk.gif") as made:
        stays = []
        for frame in range(made.n_frames):
            made.seek(frame)
            stays.append(made.info["duration"])
    assert stays.count(recording.RESTING) == 2
    assert stays[0] == recording.RESTING
    assert 3 <= len(stays) <= MOST_ON_THE_WAY + 2
