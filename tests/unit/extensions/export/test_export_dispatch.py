"""`tune export --to` as a user sees it."""

from __future__ import annotations

import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from dispatch_sample import (
    COMPARISONS,
    ONE,
    A,
    comparison,
    with_production,
    write_project,
    write_session,
)

from tuner.session.events import BitsKept
from tuner.session.session import Session


@pytest.fixture
def space(tmp_path) -> Path:
    return write_project(tmp_path / "project")


@pytest.fixture
def session(tmp_path, space) -> Path:
    return write_session(tmp_path / "session", space, COMPARISONS)


def texts(folder):
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}


def test_it_writes_the_folder_and_says_what_is_in_it(tune, session, tmp_path):
    result = tune("export", session, "--to", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "out (2 variants for 3 tuned workloads, the fewest within 1 % of all)" in (result.output)
    assert "T=500 D=8192: the rule's variant is no faster there, production's serves" in (
        result.output
    )
    assert sorted(texts(tmp_path / "out")) == [
        *("CMakeLists.txt", "README.md", "blend.h", "dispatch.json"),
        *(f"variants/blend_v{number}.cu" for number in range(3)),
    ]


def test_the_table_is_keyed_by_device_and_shape(tune, session, tmp_path):
    tune("export", session, "--to", tmp_path / "out")
    table = json.loads((tmp_path / "out" / "dispatch.json").read_text())
    device = table["devices"]["NVIDIA H200"]
    assert device["architecture"] == "sm_90a"
    smallest = device["shapes"]["T=1,D=4096"]
    assert smallest["variant"] == 1
    low, high = smallest["interval"]
    assert low <= smallest["speedup"] <= high
    assert smallest["speedup"] == pytest.approx(2.0, rel=0.01)
    assert table["variants"][1]["config"]["block"] == 64
    assert table["variants"][0]["config"] is None
    far = device["held_out"]["T=500,D=8192"]
    assert (far["variant"], far["rule"], far["verdict"]) == (0, 2, "slower")


def test_a_class_of_bits_serves_everywhere_and_the_files_say_so(tune, space, tmp_path):
    space.write_text(space.read_text() + "invariant: {T: [out]}\n")
    session = write_session(tmp_path / "rows", space, (comparison(ONE, {A: 11.0}),))
    with Session.open(session) as opened:
        opened.record_event(BitsKept(0, {ONE.key: "bits"}))
    assert tune("export", session, "--to", tmp_path / "out").exit_code == 0
    found = texts(tmp_path / "out")
    table = json.loads(found["dispatch.json"])
    assert table["invariant"] == {"T": ["out"]}
    device = table["devices"]["NVIDIA H200"]
    shapes = device["shapes"] | device["held_out"]
    assert {one["variant"] for one in shapes.values()} == {1}
    assert "the same bits however many rows there are" in found["README.md"]
    assert "| T=64, D=4096 | v1 (the nearest one's, for the bits of its rows)" in found["README.md"]


def test_it_says_whose_kernel_serves_where_ours_is_not_faster_and_what_times_are(
    tune, space, tmp_path
):
    slower = with_production(comparison(ONE, {A: 5.0}), 4.0)
    slower = replace(slower, surroundings="decode", alone_us=(11.0, 6.0, 5.0))
    session = write_session(tmp_path / "behind", space, (slower,))
    assert tune("export", session, "--to", tmp_path / "out").exit_code == 0
    found = texts(tmp_path / "out")
    device = json.loads(found["dispatch.json"])["devices"]["NVIDIA H200"]
    shape = device["shapes"]["T=1,D=4096"]
    assert (shape["variant"], shape["production"]) == (0, "production's: sgl-jit")
    assert shape["production_us"] == pytest.approx(4.0, rel=0.02)
    assert (shape["surroundings"], shape["alone_us"]) == ("decode", 11.0)
    assert device["surroundings"] == {"decode": "decode"}, "its file says no more of it"
    assert "production's: sgl-jit (the winner is not proved faster)" in found["README.md"]
    assert "costs between the neighbours" in found["README.md"]
    assert "// T=1 D=4096: production's: sgl-jit" in found["blend.h"]


@pytest.mark.parametrize(
    ("words", "variants"),
    [
        (("--variants-within", "2%"), 2),
        (("--variants-within", "2 %"), 2),
        (("--variants-within", "0.02"), 2),
        (("--variants-within", "0"), 3),
        (("--max-variants", "1"), 1),
    ],
)
def test_the_size_of_the_set_is_the_users(tune, session, tmp_path, words, variants):
    assert tune("export", session, "--to", tmp_path / "out", *words).exit_code == 0
    table = json.loads((tmp_path / "out" / "dispatch.json").read_text())
    assert len(table["variants"]) == variants + 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--variants-within", "-1%"), "not a share from 0 to 100 %; write 2% or 0.02"),
        (("--variants-within", "two"), "'two' is not a share"),
        (("--variants-within", "nan"), "'nan' is not a share"),
        (("--variants-within", "2"), "'2' is not a share"),
        (("--max-variants", "0"), "x>=1"),
        (("--max-variants", "some"), "not a valid whole number"),
        (("--max-variants", "3", "--variants-within", "1%"), "exclude one another"),
    ],
)
def test_a_wrong_option_is_a_usage_error(tune, session, tmp_path, words, told):
    result = tune("export", session, "--to", tmp_path / "out", *words)
    assert result.exit_code == 2
    assert told in result.output
    assert not (tmp_path / "out").exists()


def test_workloads_that_were_not_compared_are_named(tune, space, tmp_path):
    folder = write_session(tmp_path / "half", space, (comparison(ONE, {A: 5.0}),))
    result = tune("export", folder, "--to", tmp_path / "out")
    assert result.exit_code == 0
    assert "(1 variant for 1 of 3 tuned workloads" in result.output
    assert "never compared, so served by the baseline: T=64 D=4096, T=1024 D=4096" in (
        result.output
    )


@pytest.mark.parametrize("name", ["blend.cu", "blend.yaml"])
def test_a_file_that_has_changed_since_is_named(tune, session, space, tmp_path, name):
    path = space.with_name(name)
    path.write_text(path.read_text() + "\n")
    result = tune("export", session, "--to", tmp_path / "out")
    assert result.exit_code == 2
    assert "changed since the session began" in result.output
    assert name in result.output


def test_a_space_that_has_moved_can_be_named(tune, session, space, tmp_path):
    moved = space.parent.rename(tmp_path / "moved") / "blend.yaml"
    result = tune("export", session, "--to", tmp_path / "out")
    assert result.exit_code == 2
    assert "its search space is gone" in result.output
    assert tune("export", session, "--to", tmp_path / "out", "--space", moved).exit_code == 0


def test_another_export_replaces_the_first_and_leaves_other_files(tune, session, tmp_path):
    out = tmp_path / "out"
    tune("export", session, "--to", out, "--variants-within", "0")
    assert (out / "variants" / "blend_v3.cu").exists()
    (out / "mine.txt").write_text("mine")
    assert tune("export", session, "--to", out).exit_code == 0
    assert not (out / "variants" / "blend_v3.cu").exists()
    assert (out / "mine.txt").read_text() == "mine"


def folders(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_dir())


def test_another_format_leaves_none_of_the_first_ones_folders_but_those_with_other_files(
    tune, session, tmp_path
):
    out = tmp_path / "out"
    trace = ("export", session, "--to", out, "--format", "flashinfer-trace")
    assert tune("export", session, "--to", out).exit_code == 0
    assert tune(*trace).exit_code == 0
    made = folders(out)
    assert "solutions/tune" in made
    assert "variants" not in made
    (out / "definitions" / "mine.txt").write_text("mine")
    (out / "empty").mkdir()
    assert tune("export", session, "--to", out).exit_code == 0
    assert folders(out) == ["definitions", "empty", "variants"]


def test_the_same_session_gives_the_same_files(tune, session, tmp_path):
    tune("export", session, "--to", tmp_path / "a")
    tune("export", session, "--to", tmp_path / "b")
    assert texts(tmp_path / "a") == texts(tmp_path / "b")


TABLE = "dispatch.json"
NOT_OURS = [(name, "mine") for name in ("README.md", "variants/blend_v1.cu")] + [
    (TABLE, text) for text in ("", "[]", "{}", '{"format": "tune dispatch", "files": 3}')
]


@pytest.mark.parametrize(("name", "content"), NOT_OURS)
def test_what_is_not_ours_is_never_overwritten(tune, session, tmp_path, name, content):
    out = tmp_path / "out"
    path = out / name
    path.parent.mkdir(parents=True)
    path.write_text(content)
    result = tune("export", session, "--to", out)
    assert result.exit_code == 2
    assert f"{name}: not written by tune" in result.output
    assert texts(out) == {name: content}


def test_a_file_of_ours_that_was_edited_is_kept(tune, session, tmp_path):
    out = tmp_path / "out"
    tune("export", session, "--to", out)
    header = out / "blend.h"
    header.write_text(header.read_text() + "// mine\n")
    before = texts(out)
    result = tune("export", session, "--to", out, "--variants-within", "0")
    assert result.exit_code == 2
    assert "blend.h: not written by tune, or changed since" in result.output
    assert texts(out) == before


def test_a_table_cannot_have_files_elsewhere_removed(tune, session, tmp_path):
    out, victim = tmp_path / "out", tmp_path / "victim"
    tune("export", session, "--to", out)
    victim.write_text("x")
    table = json.loads((out / "dispatch.json").read_text())
    digest = sha256(b"x").hexdigest()
    table["files"] |= {"../victim": digest, str(victim): digest}
    (out / "dispatch.json").write_text(json.dumps(table))
    assert tune("export", session, "--to", out).exit_code == 0
    assert victim.exists()


def test_what_cannot_be_exported_is_one_message(tune, session, space, tmp_path):
    on_cpu = {"architecture": "x86_64", "on_cpu": "true"}
    empty = write_session(tmp_path / "empty", space)
    host = write_session(tmp_path / "host", space, COMPARISONS, environment=on_cpu)
    (tmp_path / "file").write_text("")
    out = tmp_path / "out"
    for words, told in (
        ((tmp_path / "nothing", "--to", out), ["nothing"]),
        ((empty, "--to", out), ["nothing was compared with the baseline", "tune --resume"]),
        ((host, "--to", out), ["host: does not say which GPU it was measured on"]),
        ((session, "--to", tmp_path / "file"), ["is not a folder"]),
        ((session, "--to", "/proc/out"), ["the export cannot be written", "--to"]),
        ((session, "--trajectories", out, "--max-variants", "2"), ["are for --to"]),
    ):
        result = tune("export", *words)
        assert result.exit_code == 2
        assert all(one in result.output for one in told), result.output
    assert not out.exists()


POWER = "2 ** (T % 3)"


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ('[T, "ceil_div(D, 1024)"]\n', f'["{POWER}"]\n', [":35: ", POWER, "no equal in C++"]),
        ("grid: [T], block: [128]}\np", f'grid: ["{POWER}"], block: [128]}}\np', [":23: ", POWER]),
        ("- D % block == 0", "- ('a' if D > 5 else 'b') == 'a'", [":30: ", "a text that depends"]),
        ("- D % block == 0", "- T < 99999999999999999999", [":30: ", "over 64 bits"]),
        ("float32, value: 1.0e-6", "float16, value: 1.0e-6", [":14: ", "'eps' is float16"]),
        ("float32, value: 1.0e-6", "int8, value: 1000", [":14: ", "'eps' is 1000"]),
        ("kernel: blend\nsource", "kernel: class\nsource", ["`class` cannot be", "`kernel`"]),
        ("int64, value: D", "int64, value: 4096", ["two parameters would be `D`", "rename"]),
    ],
)
def test_what_has_no_equal_in_cpp_is_one_error_with_its_line(
    tune, space, tmp_path, before, after, told
):
    text = space.read_text()
    assert before in text
    space.write_text(text.replace(before, after))
    session = write_session(tmp_path / "session", space, COMPARISONS)
    result = tune("export", session, "--to", tmp_path / "out")
    assert result.exit_code == 2
    assert "blend.yaml" in result.output
    assert all(one in result.output for one in told), result.output
    assert len(result.output.strip().splitlines()) == 2, "the error and its remedy"
    assert not (tmp_path / "out").exists()


def test_a_session_without_a_winner_is_exported_with_a_warning(tune, space, tmp_path):
    session = write_session(tmp_path / "slower", space, (comparison(ONE, {A: 20.0}),))
    result = tune("export", session, "--to", tmp_path / "out")
    assert result.exit_code == 0
    assert "no variant is proved faster anywhere: only the baseline is exported" in result.stderr
    assert not (tmp_path / "out" / "variants" / "blend_v1.cu").exists()


def test_options_reach_the_shell_and_cmake_as_they_are(tune, space, tmp_path):
    option = "-DTEXT=a b;$HOME"
    text = space.read_text().replace("axes:", f"options: ['{option}']\naxes:")
    space.write_text(text)
    session = write_session(tmp_path / "session", space, COMPARISONS)
    assert tune("export", session, "--to", tmp_path / "out").exit_code == 0
    found = texts(tmp_path / "out")
    assert "code=sm_90a '-DTEXT=a b;$HOME' -c" in found["README.md"]
    assert "\"SHELL:'-DTEXT=a b\\;\\$HOME'\"" in found["CMakeLists.txt"]


def test_a_link_in_the_folder_is_never_written_through(tune, session, tmp_path):
    out, victim = tmp_path / "out", tmp_path / "victim"
    out.mkdir()
    victim.write_text("mine")
    for name in ("CMakeLists.txt.new", "CMakeLists.txt.partial", ".CMakeLists.txt"):
        (out / name).symlink_to(victim)
    assert tune("export", session, "--to", out).exit_code == 0
    (out / "README.md").unlink()
    (out / "README.md").symlink_to(victim)
    assert "README.md: not written by tune" in tune("export", session, "--to", out).stderr
    assert victim.read_text() == "mine"
