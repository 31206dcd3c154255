"""Records joined by time to the frames of a sampler with a clock of its own."""

import json

import numpy as np
import pytest

from atrex.errors import UserError
from atrex.traces import importer, timejoin
from atrex.traces.pipeline import Options
from tests.traces import scene

RNG = np.random.default_rng(7)
STEPS = [int(x) for x in RNG.integers(4_000_000, 30_000_000, 60)]  # ns of work of each step, then an idle gap


def device(tmp_path, steps=STEPS, header=None):
    """A trace of kernels alone: bursts of work, as a device trace without the host has them."""
    built = scene.Scene()
    now = scene.START
    for i, work in enumerate(steps):
        kernel = "kernel_paged_attention_2d" if i % 2 else "nvjet_tst_64x8"
        for _ in range(4):
            built.add("kernel", kernel, now, work // 4, 0, 7, device=0, stream=7)
            now += work // 4
        now += 9_000_000
    path = tmp_path / "device.json"
    path.write_bytes(scene.render(built.events, header=header))
    return path


def sampler(tmp_path, offset, steps=STEPS, lag=0, name="frames.json"):
    """py-spy's chrometrace: begin and end events in whole microseconds on a clock that starts at 0."""
    events = []
    now = scene.START - offset

    def mark(phase, frame, at):
        events.append({"args": {"filename": "model.py", "line": 3}, "cat": "py-spy", "name": frame, "ph": phase,
                       "pid": 5, "tid": 6, "ts": at // 1000})  # fmt: skip

    mark("B", "serve", now)
    for i, work in enumerate(steps):
        for frame, phase in (("step", "B"), ("decode_step" if i % 2 else "prefill_step", "B")):
            mark(phase, frame, now - lag)
        for frame in ("decode_step" if i % 2 else "prefill_step", "step"):
            mark("E", frame, now - lag + work)
        now += work // 4 * 4 + 9_000_000
    mark("E", "serve", now)
    path = tmp_path / name
    path.write_text(json.dumps(events))
    return path


def test_begin_and_end_events_are_paired(tmp_path):
    from atrex.traces.readers import kineto

    trace = kineto.read(sampler(tmp_path, 0))
    names = [trace.strings[n] for n in trace.host["name"]]
    assert names.count("step") == len(STEPS) and names.count("serve") == 1
    steps = trace.host.filter(trace.host["name"] == trace.strings.id("step")).sort("start")
    assert steps["dur"].to_list() == pytest.approx(STEPS, abs=1_000)


@pytest.mark.parametrize("offset", [0, 123_456_789_000, -77_000_000])
def test_the_offset_is_found_within_the_stated_error(tmp_path, offset):
    one, two = (timejoin_read(p) for p in (device(tmp_path), sampler(tmp_path, offset)))
    found = timejoin.align(one, two)
    assert abs(found.offset - offset) <= found.error < 5_000_000
    assert "offset" in found.sentence() and "error" in found.sentence()


def timejoin_read(path):
    from atrex.traces import readers

    return readers.reader_of(path).read(path)


def test_kernels_get_the_frames_that_were_open_and_the_output_says_how(tmp_path):
    options = Options(host=sampler(tmp_path, 40_000_000_000))
    analysis = importer.analyse_file(device(tmp_path), options)
    assert set(analysis.joins.link) == {"time"}
    right = 0
    for row, site in enumerate(analysis.joins.site):
        kernel = analysis.trace.strings[analysis.trace.device["name"][row]]
        frames = analysis.sites[site].context.frames if site >= 0 else ()
        right += ("decode_step" in frames) == (kernel == "kernel_paged_attention_2d") and len(frames) == 3
    assert right / len(analysis.joins.site) > 0.9
    assert any("correlation" in note and "offset" in note and "error" in note for note in analysis.trace.meta.notes)


def test_wall_clocks_are_used_where_both_files_state_them(tmp_path):
    one = timejoin_read(device(tmp_path))
    built = scene.serving()
    (tmp_path / "host.json").write_bytes(scene.render(built.events))
    found = timejoin.align(one, timejoin_read(tmp_path / "host.json"))
    assert found.offset == 0 and found.method == "the wall clocks of both files"


def test_a_given_offset_holds_and_its_error_is_unknown(tmp_path):
    one, two = (timejoin_read(p) for p in (device(tmp_path), sampler(tmp_path, 0)))
    found = timejoin.align(one, two, offset=55)
    assert found.offset == 55 and found.error is None and "error unknown" in found.sentence()


def test_a_regular_loop_is_called_ambiguous(tmp_path):
    steps = [10_000_000] * 200
    one, two = (timejoin_read(p) for p in (device(tmp_path, steps), sampler(tmp_path, 0, steps)))
    assert timejoin.align(one, two).ambiguous == pytest.approx(19_000_000, rel=0.1)


def test_activities_that_have_nothing_in_common_are_refused(tmp_path):
    one = timejoin_read(device(tmp_path))
    other = [int(x) for x in np.random.default_rng(1).integers(1_000_000, 300_000_000, 9)]
    with pytest.raises(UserError, match="--clock-offset"):
        timejoin.align(one, timejoin_read(sampler(tmp_path, 0, other[:1])))
