"""Finding the search space of a kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.app.locate import find_recordings, find_space, is_python_kernel, require_kernel
from tuner.model.errors import KernelError, SpaceError


def touch(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def test_the_space_is_found_from_the_current_folder_first(tmp_path: Path) -> None:
    kernel = touch(tmp_path / "elsewhere/kernels/scale.cu")
    touch(tmp_path / "elsewhere/search_spaces/scale.yaml")
    here = touch(tmp_path / "here/search_spaces/deep/er/scale.yaml")
    assert find_space(kernel, tmp_path / "here") == here


def test_the_space_is_found_from_the_kernels_folder_upwards(tmp_path: Path) -> None:
    kernel = touch(tmp_path / "project/kernels/vendor/scale.cu")
    space = touch(tmp_path / "project/search_spaces/vendor/scale.yaml")
    touch(tmp_path / "project/search_spaces/vendor/scale_add.yaml")
    (tmp_path / "unrelated").mkdir()
    assert find_space(kernel, tmp_path / "unrelated") == space


def test_several_matches_are_listed(tmp_path: Path) -> None:
    kernel = touch(tmp_path / "scale.cu")
    first = touch(tmp_path / "search_spaces/a/scale.yaml")
    second = touch(tmp_path / "search_spaces/b/scale.yaml")
    with pytest.raises(SpaceError) as caught:
        find_space(kernel, tmp_path)
    for part in ("2 search spaces", str(first), str(second), "--space"):
        assert part in str(caught.value)


def test_a_space_of_the_kernels_whole_name_is_its_own(tmp_path: Path) -> None:
    kernels = [touch(tmp_path / "kernels" / f"scale.{end}") for end in ("cu", "cl")]
    plain = touch(tmp_path / "search_spaces/scale.yaml")
    own = touch(tmp_path / "search_spaces/scale.cl.yaml")
    assert [find_space(kernel, tmp_path) for kernel in kernels] == [plain, own]


def test_a_space_in_a_folder_named_as_the_kernels_goes_first(tmp_path: Path) -> None:
    vendors = [touch(tmp_path / f"kernels/{vendor}/scale.cu") for vendor in ("a", "b")]
    plain = touch(tmp_path / "search_spaces/a/scale.yaml")
    whole = touch(tmp_path / "search_spaces/b/scale.cu.yaml")
    assert [find_space(kernel, tmp_path) for kernel in vendors] == [plain, whole]


def test_no_match_names_the_command_that_drafts_one(tmp_path: Path) -> None:
    kernel = touch(tmp_path / "scale.cu")
    with pytest.raises(SpaceError, match=r"no search_spaces/\*\*/scale\.yaml\n.*`tune init "):
        find_space(kernel, tmp_path)


def test_a_stem_with_pattern_characters_matches_itself_only(tmp_path: Path) -> None:
    kernel = touch(tmp_path / "scale[ab].cu")
    touch(tmp_path / "search_spaces/scalea.yaml")
    own = touch(tmp_path / "search_spaces/scale[ab].yaml")
    assert find_space(kernel, tmp_path) == own


def test_what_cannot_hold_a_kernel_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match="no such kernel file"):
        require_kernel(tmp_path / "missing.cu")
    with pytest.raises(KernelError, match="is not a file"):
        require_kernel(tmp_path)
    with pytest.raises(KernelError, match="is a search space"):
        require_kernel(touch(tmp_path / "scale.yaml"))


def test_recordings_are_listed_from_the_tree(tmp_path: Path) -> None:
    first = touch(tmp_path / "kernels/a/recordings/h200/scale.json.xz")
    second = touch(tmp_path / "kernels/b/recordings/h200/norm.json.xz")
    touch(tmp_path / "kernels/a/scale.cu")
    touch(tmp_path / "kernels/a/recordings/h200/notes.txt")
    assert find_recordings(tmp_path, ".json.xz") == (first, second)


@pytest.mark.parametrize("name", ["softmax.py", "rmsnorm.json"])
def test_a_problem_is_no_kernel_but_may_become_one(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("")
    with pytest.raises(KernelError, match="is no kernel") as failed:
        require_kernel(tmp_path / name)
    assert "tune init" in str(failed.value)


@pytest.mark.parametrize(
    "definition",
    [
        "def launch(config, tensors, axes): ...",
        "async def launch(config, tensors, axes): ...",
        "class launch: ...",
        "launch = lambda config, tensors, axes: None",
        "launch: object = print",
    ],
)
def test_a_python_file_with_a_launch_of_any_kind_is_a_kernel(
    tmp_path: Path, definition: str
) -> None:
    path = tmp_path / "one.py"
    path.write_text(f"import math\n\n\n{definition}\n")
    assert is_python_kernel(path)
    path.write_text("def launched(): ...\nlaunches = 1\n")
    assert not is_python_kernel(path)
