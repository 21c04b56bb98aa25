import logging
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tuner.compiler.base import CompileRequest, CompileResult
from tuner.compiler.cache import Cache, cache_key, user_cache_dir
from tuner.model.trial import Resources

RESULT = CompileResult(
    cubin=b"\x7fELF" * 100,
    lowered={"foo<8>": "_Z3fooILi8EEvPf"},
    resources={"foo<8>": Resources(32, 4, 8, 1024, 16, 1)},
    seconds=0.05,
)
REQUEST = CompileRequest("source", ("k",), "sm_90a", ("-DA=1",), ("folder",))
KEY = cache_key(REQUEST, "NVRTC 13.5", "")


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path)


def entry(cache):
    [path] = cache.directory.glob("compiled/*")
    return path


def test_returns_what_was_stored_marked_as_cached(cache):
    assert cache.get(KEY) is None
    cache.put(KEY, RESULT)

    assert Cache(cache.directory).get(KEY) == replace(RESULT, cached=True, seconds=0.0)


def test_keeps_errors_but_no_timeouts(cache):
    cache.put(KEY, CompileResult(error="kernel.cu(3): error: no"))
    cache.put("ff" * 32, CompileResult(error="too slow", timed_out=True))

    assert cache.get(KEY) == CompileResult(error="kernel.cu(3): error: no", cached=True)
    assert cache.get("ff" * 32) is None


def test_the_content_of_another_entry_is_not_trusted(cache):
    other = cache_key(replace(REQUEST, source="other"), "NVRTC 13.5", "")
    cache.put(KEY, RESULT)
    entry(cache).rename(cache.directory / "compiled" / other)

    assert cache.get(other) is None


def test_a_folder_in_the_place_of_an_entry_costs_only_the_storing(cache):
    cache.put("ff" * 32, RESULT)
    (cache.directory / "compiled" / KEY).mkdir()

    assert cache.get(KEY) is None
    cache.put(KEY, RESULT)
    cache.prune()
    assert {path.name for path in (cache.directory / "compiled").iterdir()} == {KEY, "ff" * 32}


@pytest.mark.parametrize("damage", ["cut", "flipped", "emptied", "zeroed", "random"])
def test_a_damaged_entry_is_ignored_and_replaced(cache, damage, caplog):
    cache.put(KEY, RESULT)
    path = entry(cache)
    data = bytearray(path.read_bytes())
    if damage == "flipped":
        data[-1] ^= 1
    left = {"cut": data[:-10], "flipped": data, "emptied": b"", "zeroed": bytes(len(data))}
    path.write_bytes(left.get(damage, b"\x93\x1b" * 2500))

    with caplog.at_level(logging.WARNING):
        assert cache.get(KEY) is None
    assert "damaged" in caplog.text
    cache.put(KEY, RESULT)
    found = cache.get(KEY)
    assert found is not None
    assert found.cubin == RESULT.cubin


@pytest.mark.parametrize(
    "other",
    [
        cache_key(replace(REQUEST, source="other"), "NVRTC 13.5", ""),
        cache_key(replace(REQUEST, kernels=("k", "l")), "NVRTC 13.5", ""),
        cache_key(replace(REQUEST, architecture="sm_89"), "NVRTC 13.5", ""),
        cache_key(replace(REQUEST, options=()), "NVRTC 13.5", ""),
        cache_key(replace(REQUEST, include_dirs=()), "NVRTC 13.5", ""),
        cache_key(REQUEST, "NVRTC 13.6", ""),
        cache_key(REQUEST, "NVRTC 13.5", "headers changed"),
    ],
)
def test_all_that_decides_the_result_is_in_the_key(other):
    assert cache_key(replace(REQUEST), "NVRTC 13.5", "") == KEY
    assert other != KEY


def test_prunes_what_was_used_longest_ago(tmp_path):
    cache = Cache(tmp_path, max_bytes=20_000)
    keys = [f"{number:064x}" for number in range(256, 261)]
    for age, key in enumerate(keys):
        cache.put(key, replace(RESULT, cubin=bytes(4700)))
        os.utime(tmp_path / "compiled" / key, (1000 + age, 1000 + age))
    assert cache.get(keys[0]) is not None

    cache.prune()

    assert [cache.get(key) is not None for key in keys] == [True, False, False, True, True]


@pytest.mark.parametrize(("age_s", "pruned"), [(0, False), (90_000, True), (-90_000, True)])
def test_it_prunes_once_a_day_by_whatever_clock(tmp_path, age_s, pruned):
    stamp = tmp_path / "compiled.pruned"
    stamp.touch()
    os.utime(stamp, (time.time() - age_s,) * 2)
    cache = Cache(tmp_path, max_bytes=1)
    cache.put(KEY, RESULT)
    assert (cache.get(KEY) is None) is pruned


def test_a_folder_that_cannot_be_written_costs_a_warning(tmp_path, caplog):
    (tmp_path / "compiled").write_text("not a folder")

    Cache(tmp_path).put(KEY, RESULT)

    assert "cannot write to the cache" in caplog.text


def test_the_folder_can_be_set(monkeypatch, tmp_path):
    monkeypatch.setenv("TUNER_CACHE_DIR", str(tmp_path))
    assert user_cache_dir() == tmp_path

    monkeypatch.delenv("TUNER_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert user_cache_dir() == tmp_path / "kernel-tune"
    assert isinstance(Cache().directory, Path)
