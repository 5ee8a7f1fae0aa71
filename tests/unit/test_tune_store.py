"""The store of tuning results: whole or absent, under races, kills, damage, and disks that cannot be written."""

from __future__ import annotations

import dataclasses
import errno
import json
import multiprocessing
import os
import re
import resource
import time
import warnings
from pathlib import Path

import pytest

from tilewright.errors import CacheError
from tilewright.gemm.classes import class_of
from tilewright.gemm.family import PRODUCTS
from tilewright.gemm.problem import GemmProblem
from tilewright.gemm.rung import GemmConfig
from tilewright.gemm.rungs import find_rung
from tilewright.plan import store as store_module
from tilewright.plan.entries import Entry, Failure, Timed, decode, encode, table_of
from tilewright.plan.store import Store, default_folder, file_name, stored_files
from tilewright.tuning.families import entries_of

F12 = find_rung("f12")


def entry(m: int = 256, n: int = 256, k: int = 256, ms: float = 1.0, when: str = "2026-01-01", **more) -> Entry:
    problem = GemmProblem.dense(m, n, k)
    timed = (Timed(F12.id, F12.default, ms), Timed(F12.id, dataclasses.replace(F12.default, stages=3), 2 * ms))
    return Entry(class_of(problem), (m, n, k, 1), timed, when=when, **{"kernels": "abc", **more})


def table(*entries: Entry) -> dict[str, Entry]:
    return {e.key: e for e in entries}


@pytest.fixture
def store(tmp_path) -> Store:
    return Store("H200", "cuda13", tmp_path)


def again(store: Store) -> Store:
    """The file as another process finds it."""
    return Store(store.gpu, store.driver, store.path.parents[1])


# --- as JSON ---------------------------------------------------------------------------------------------------------


def test_a_result_with_an_epilogue_comes_back_with_its_words_and_bare_ones_are_written_as_ever():
    bare = entry()
    fused = dataclasses.replace(bare, klass=dataclasses.replace(bare.klass, fused=True), epilogue="silu(acc) + bias")
    data = encode(table_of(table(bare, fused).values(), "H200", "cuda13"))
    assert entries_of(decode(data)) == table(bare, fused)
    assert entries_of(decode(data))[fused.key].epilogue == "silu(acc) + bias"
    assert data.count(b"epilogue") == 1
    assert set(entries_of(decode(data))) == {bare.key, fused.key}
    assert len({bare.key, fused.key}) == 2


def test_a_table_comes_back_as_it_was_written():
    full = entry(failed=(Failure("f12_multistage", "x", "compile", "no"),), finished=False, seconds=1.25)
    sliced = dataclasses.replace(full, klass=dataclasses.replace(full.klass, m=512), timed=(
        Timed("h11_mma_multistage", GemmConfig(64, 64, 64, warp_m=32, warp_n=32, slices_k=2), 0.5),
    ))  # fmt: skip
    data = encode(table_of(table(full, sliced).values(), "H200", "cuda13"))
    found = decode(data)
    assert (entries_of(found), found.gpu, found.driver) == (table(full, sliced), "H200", "cuda13")
    assert encode(table_of(entries_of(decode(data)).values(), "H200", "cuda13")) == data
    assert encode(table_of(table(sliced, full).values(), "H200", "cuda13")) == data, "the order of tuning must not show"


def test_a_config_of_a_newer_version_is_left_out_and_the_rest_is_read():
    data = encode(table_of(table(entry()).values(), "H200", "cuda13")).replace(
        b'"stages":3', b'"stages":3,"warp_specialised":1'
    )
    (found,) = entries_of(decode(data)).values()
    assert [timed.ms for timed in found.timed] == [1.0]
    assert found.unknown == 1


DAMAGES = [
    lambda data: data[: len(data) // 2],
    lambda data: b"",
    lambda data: b"[]",
    lambda data: b"\xff\xfe" + data,
    lambda data: data.replace(b'"schema":1', b'"schema":99'),
    lambda data: data.replace(b'"shape":[256', b'"shape":["x"'),
    lambda data: data.replace(b":1.0,", b":-1.0,"),
    lambda data: data.replace(b":1.0,", b":NaN,"),
    lambda data: data.replace(b'"stages":3', b'"stages":"3"'),
    lambda data: data.replace(b'"whole":true', b'"whole":1'),
    lambda data: data.replace(b'"dtype":"f32",', b""),
    lambda data: data.replace(b'"dtype":"f32"', b'"dtype":"f33"'),
    lambda data: data.replace(b'"layout":"nn"', b'"layout":"xn"'),
    lambda data: data.replace(b'"shape":[256', b'"shape":[0'),
    lambda data: data.replace(b'"shape":[256', b'"shape":[1e999'),
    lambda data: data.replace(b'"stages":3', b'"stages":0'),
    lambda data: data.replace(b'"warp_n":64', b'"warp_n":0'),
    lambda data: data.replace(b'"rung":"f12_multistage"', b'"rung":12'),
    lambda data: b"[" * 100_000,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_no_table_is_refused_with_the_reason(damage):
    data = encode(table_of(table(entry()).values(), "H200", "cuda13"))
    assert damage(data) != data
    with pytest.raises(CacheError, match="not a table of tuning results"):
        entries_of(decode(damage(data)))


def of_another_layout(data: bytes) -> bytes:
    return json.dumps(json.loads(data), indent=1).encode()


def with_a_row_by_hand(data: bytes) -> bytes:
    """The first entry's class stands last, on lines of its own; all else is as it was."""
    lines = data.decode().split("\n")
    place = next((place for place, line in enumerate(lines) if line.startswith('{"class"')), None)
    if place is None:
        return data
    values, end = json.JSONDecoder().raw_decode(lines[place])
    values["class"] = values.pop("class")
    lines[place] = json.dumps(values, indent=1) + lines[place][end:]
    return "\n".join(lines).encode()


LAYOUTS = pytest.mark.parametrize("laid_out", [bytes, of_another_layout, with_a_row_by_hand])


@LAYOUTS
def test_a_stored_table_decodes_an_entry_when_it_is_asked_for_and_then_says_what_is_wrong_with_it(laid_out):
    sound, damaged = entry(), entry(m=512)
    data = laid_out(
        encode(table_of(table(sound, damaged).values(), "H200", "cuda13")).replace(b'"shape":[512', b'"shape":["x"')
    )
    read = decode(data)
    assert (read.gpu, read.driver) == ("H200", "cuda13")
    found = read.of(PRODUCTS)
    assert found.classes == {sound.key: sound.klass, damaged.key: damaged.klass}
    assert found.decoded == {}
    assert found[sound.key] == sound
    assert set(found.decoded) == {sound.key}
    assert found[sound.key] is found[sound.key]
    assert "no key" not in found
    for ask in (lambda: found[damaged.key], lambda: damaged.key in found, lambda: len(found), found.check):
        with pytest.raises(CacheError, match=r"not a table of tuning results .*'x'"):
            ask()


@LAYOUTS
def test_a_stored_table_has_no_entries_of_another_versions_results_alone(laid_out):
    known, other = entry(), entry(m=512)
    data = encode(table_of(table(known, other).values(), "H200", "cuda13"))
    line = next(line for line in data.decode().splitlines() if line.startswith('{"class":{"m":512'))
    nothing = re.sub(r'"ms":\{[^}]*\}', '"ms":{}', line)
    found = decode(laid_out(data.replace(line.encode(), nothing.encode()))).of(PRODUCTS)
    assert set(found.classes) == {known.key, other.key}
    assert (list(found), len(found), other.key in found) == ([known.key], 1, False)
    assert found == table(known)
    assert decode(laid_out(encode(table_of([], "H200", "cuda13")))).of(PRODUCTS) == {}


@pytest.mark.parametrize(
    "damage",
    [
        *DAMAGES,
        lambda data: data.replace(b'"gpu":"H200"', b'"gpu":1'),
        lambda data: data.replace(b'{"class"', b'{"klass"'),
        lambda data: data.replace(b'"stages":3', b'"stages":3]'),
        lambda data: data.replace(b'"failed":[]', b'"failed":['),
    ],
)
def test_a_damaged_table_is_refused_when_it_is_stored_or_when_its_entry_is_asked_for_or_all_are(damage):
    data = encode(table_of(table(entry()).values(), "H200", "cuda13"))
    assert damage(data) != data
    with pytest.raises(CacheError, match="not a table of tuning results"):
        decode(damage(data)).of(PRODUCTS).check()


def newer(one: Entry, other: Entry) -> Entry:
    """Which of two results for a class stands."""
    (found,) = entries_of(table_of([one]).merged(table_of([other]))).values()
    return found


def test_the_newer_result_stands_and_a_finished_one_before_one_that_was_stopped():
    old, new = entry(when="2026-01-01"), entry(ms=3.0, when="2026-02-01")
    assert newer(old, new) == newer(new, old) == new
    stopped = entry(when="2026-03-01", finished=False)
    assert newer(stopped, new) == newer(new, stopped) == new
    other_kernels = entry(when="2026-03-01", finished=False, kernels="def")
    assert newer(other_kernels, new) == other_kernels, "what is known of older kernels does not outlive them"
    same_date = entry(ms=5.0, when="2026-01-01")
    assert newer(old, same_date) == newer(same_date, old)


# --- the file --------------------------------------------------------------------------------------------------------


def test_what_was_added_is_there_for_the_next_process(store):
    assert store.add([entry(), entry(m=512)])
    assert entries_of(again(store).table) == table(entry(), entry(m=512))
    assert stored_files(store.path.parents[1]) == [store.path]


def test_what_another_process_wrote_meanwhile_is_kept(store):
    other = again(store)
    other.add([entry(m=512)])
    store.add([entry()])
    assert entries_of(again(store).table) == entries_of(store.table) == table(entry(), entry(m=512))


def test_an_import_may_replace_newer_results_and_a_merge_does_not(store):
    store.add([entry(when="2026-02-01")])
    store.add([entry(ms=7.0, when="2026-01-01")])
    assert entries_of(again(store).table) == table(entry(when="2026-02-01"))
    store.add([entry(ms=7.0, when="2026-01-01")], replace=True)
    assert entries_of(again(store).table) == table(entry(ms=7.0, when="2026-01-01"))


def test_a_file_cut_in_half_is_set_aside_and_said_once(store):
    store.add([entry()])
    data = store.path.read_bytes()
    store.path.write_bytes(data[: len(data) // 2])
    with pytest.warns(RuntimeWarning, match=r"were corrupt .*set aside as") as said:
        fresh = again(store)
    assert entries_of(fresh.table) == {}
    assert fresh.add([entry(m=512)])
    assert len(said) == 1
    assert entries_of(again(store).table) == table(entry(m=512))
    (aside,) = store.path.parent.glob("*.corrupt-*")
    assert aside.read_bytes() == data[: len(data) // 2]
    assert aside not in stored_files(store.path.parents[1])


def test_a_sound_file_that_took_the_damaged_ones_place_is_read_and_stays(store, monkeypatch):
    store.add([entry()])
    sound = store.path.read_bytes()
    store.path.write_text("{")
    decode = store_module.decode

    def meanwhile(data: bytes):
        if data == b"{":  # another process replaces the file between our reading it and setting it aside
            store.path.write_bytes(sound)
        return decode(data)

    monkeypatch.setattr(store_module, "decode", meanwhile)
    assert entries_of(again(store).table) == table(entry())
    assert store.path.read_bytes() == sound
    assert not list(store.path.parent.glob("*.corrupt-*"))


def test_damage_while_the_process_runs_does_not_lose_what_it_knows(store):
    store.add([entry()])
    store.path.write_text("{")
    with pytest.warns(RuntimeWarning, match="corrupt"):
        store.add([entry(m=512)])
    assert entries_of(again(store).table) == table(entry(), entry(m=512))


def write_often(folder: Path, number: int, rounds: int, begin) -> None:
    store = Store("H200", "cuda13", folder)
    begin.wait()
    for turn in range(rounds):
        store.add([entry(m=16 * (number + 1), n=2 ** (turn % 8))])


def start(folder: Path, count: int, rounds: int) -> list:
    """Processes that all begin to write at once, when the last of them is ready."""
    fork = multiprocessing.get_context("fork")  # no import to wait for
    begin = fork.Barrier(count + 1)
    writers = [fork.Process(target=write_often, args=(folder, number, rounds, begin)) for number in range(count)]
    for writer in writers:
        writer.start()
    begin.wait(300)
    return writers


def test_sixteen_processes_writing_at_once_lose_nothing(store, tmp_path):
    writers = start(tmp_path, 16, 4)
    for writer in writers:
        writer.join(300)
    assert [writer.exitcode for writer in writers] == [0] * 16
    wanted = {entry(m=16 * (number + 1), n=2**turn).key for number in range(16) for turn in range(4)}
    assert set(entries_of(again(store).table)) == wanted
    assert not list(store.path.parent.glob(f".{store.path.name}-*"))


def test_a_process_killed_in_mid_write_leaves_a_sound_file_and_no_lock(store, tmp_path):
    store.add([entry(k=64)])
    for wait in (0.0, 0.005, 0.01, 0.02, 0.03):
        (writer,) = start(tmp_path, 1, 100_000)
        time.sleep(wait)
        writer.kill()
        writer.join(300)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert entry(k=64).key in entries_of(again(store).table)
    assert again(store).add([entry(k=128)]), "a dead process holds no lock"
    assert {entry(k=64).key, entry(k=128).key} <= set(entries_of(again(store).table))


def test_a_home_that_cannot_be_written_is_said_once_and_results_serve_the_process(tmp_path):
    (tmp_path / "file").write_text("no folder")
    store = Store("H200", "cuda13", tmp_path / "file" / "below")
    with pytest.warns(RuntimeWarning, match=r"cannot be written .*TILEWRIGHT_TUNED"):
        assert not store.add([entry()])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # once is enough
        assert not store.add([entry(m=512)])
    assert entries_of(store.table) == table(entry(), entry(m=512))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to a folder of any mode")
def test_a_folder_of_mode_0500_is_such_a_home(tmp_path):
    folder = tmp_path / "home"
    folder.mkdir(mode=0o500)
    with pytest.warns(RuntimeWarning, match="cannot be written"):
        assert not Store("H200", "cuda13", folder).add([entry()])


@pytest.mark.parametrize("where", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_file_and_no_temporary_one(store, monkeypatch, where):
    store.add([entry()])
    before = store.path.read_bytes()

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store_module.os, where, full)
    with pytest.warns(RuntimeWarning, match="No space left"):
        assert not store.add([entry(m=512)])
    monkeypatch.undo()
    assert store.path.read_bytes() == before
    assert not list(store.path.parent.glob(f".{store.path.name}-*"))
    assert set(entries_of(store.table)) == {entry().key, entry(m=512).key}
    assert store.add([]), "room again: what was only in memory is written now"
    assert set(entries_of(again(store).table)) == {entry().key, entry(m=512).key}


def add_with_no_room(folder: Path, told) -> None:
    store = Store("H200", "cuda13", folder)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        stored = store.add([entry(n=16 * i) for i in range(1, 100)])
    told.put((stored, len(entries_of(store.table)), [str(warning.message) for warning in said]))


def test_a_disk_that_takes_no_more_bytes_leaves_the_old_file_and_no_temporary_one(store, tmp_path):
    """No fake: the kernel refuses to let the file grow."""
    store.add([entry()])
    before = store.path.read_bytes()
    fork = multiprocessing.get_context("fork")
    told = fork.Queue()
    process = fork.Process(target=add_with_no_room, args=(tmp_path, told))
    process.start()
    stored, known, said = told.get(timeout=300)
    process.join(300)
    assert not stored
    assert known == len({entry(n=16 * i).key for i in range(1, 100)} | {entry().key})
    assert len(said) == 1
    assert "cannot be written" in said[0]
    assert store.path.read_bytes() == before
    assert sorted(path.name for path in store.path.parent.iterdir()) == [
        "H200-cuda13.json", "H200-cuda13.lock",
    ]  # fmt: skip


def test_where_the_files_lie(monkeypatch, tmp_path):
    monkeypatch.setenv("TILEWRIGHT_TUNED", str(tmp_path / "a"))
    assert default_folder() == tmp_path / "a"
    monkeypatch.delenv("TILEWRIGHT_TUNED")
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "b"))
    assert default_folder() == tmp_path / "b" / "tuned"
    assert file_name("GeForce RTX 4090", "cuda13") == "GeForce-RTX-4090-cuda13.json"
    assert file_name("../evil", "cuda13") == "evil-cuda13.json"
