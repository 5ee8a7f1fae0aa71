"""The kernel cache: whole entries or none, under races, kills, corruption and disks that cannot be written."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
import warnings
import zipfile
from pathlib import Path

import pytest

import tilewright
from tilewright.cli import main
from tilewright.errors import CacheError
from tilewright.gpus import find_gpu
from tilewright.jit import cache as cache_module
from tilewright.jit import compile as compile_module
from tilewright.jit import compile_source, limits
from tilewright.jit.cache import KernelCache
from tilewright.jit.launch import use_executor
from tilewright.lab.doctor import examine
from tilewright.plan import store, tables

KEY, OTHER = "a" * 64, "b" * 64
FILES = {"kernel.cubin": b"\x7fELF" + bytes(range(256)), "kernel.ptx": b".version 9.0", "kernel.log": b"ptxas info"}
KERNEL = 'extern "C" __global__ void fill(float* x) { x[threadIdx.x] = 1.5f; }'


@pytest.fixture
def cache(tmp_path) -> KernelCache:
    return KernelCache(tmp_path)


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_an_entry_comes_back_as_it_was_stored(cache):
    assert cache.load(KEY) is None
    assert cache.store(KEY, FILES)
    assert cache.load(KEY) == FILES
    assert cache.keys() == [KEY]
    assert cache.size() >= sum(map(len, FILES.values()))


def test_the_second_writer_of_a_key_uses_the_firsts_entry(cache):
    assert cache.store(KEY, FILES)
    assert cache.store(KEY, {**FILES, "kernel.log": b"another"})
    assert cache.load(KEY) == FILES
    assert not [name for name in names(cache.folder) if ".new-" in name]


def truncate(entry: Path) -> None:
    (entry / "kernel.cubin").write_bytes(FILES["kernel.cubin"][:10])


def alter(entry: Path) -> None:
    (entry / "kernel.cubin").write_bytes(bytes(len(FILES["kernel.cubin"])))


def lose_a_file(entry: Path) -> None:
    (entry / "kernel.ptx").unlink()


def cut_the_index(entry: Path) -> None:
    (entry / "index.json").write_text('{"key": "')


def empty_the_index(entry: Path) -> None:
    (entry / "index.json").write_text("[]")


def nest_the_index(entry: Path) -> None:
    (entry / "index.json").write_text("[" * 100_000)


def become_a_file(entry: Path) -> None:
    for path in entry.iterdir():
        path.unlink()
    entry.rmdir()
    entry.write_text("not a folder")


def hold_anothers_entry(entry: Path) -> None:
    (entry / "index.json").write_text((entry / "index.json").read_text().replace(KEY, OTHER))


@pytest.mark.parametrize(
    "damage",
    [truncate, alter, lose_a_file, cut_the_index, empty_the_index, nest_the_index, become_a_file, hold_anothers_entry],
    ids=lambda f: f.__name__,
)
def test_a_damaged_entry_is_never_served_heals_and_is_told_once(cache, damage):
    for key in (KEY, OTHER):
        cache.store(key, FILES)
        if key == KEY or damage is not hold_anothers_entry:
            damage(cache.path(key))
    damaged = [KEY] if damage is hold_anothers_entry else [KEY, OTHER]
    with pytest.warns(RuntimeWarning, match="corrupt") as told:
        loaded = [cache.load(key) for key in damaged]
    assert not any(loaded)
    assert len(told) == 1, "said once, not once an entry"
    assert cache.store(KEY, FILES)
    assert cache.load(KEY) == FILES


def test_a_truncated_entry_of_a_real_kernel_is_compiled_again(tmp_path, monkeypatch):
    monkeypatch.setenv(cache_module.ENVIRONMENT_VARIABLE, str(tmp_path))
    first = compile_source(KERNEL, entry="fill")
    entry = KernelCache(tmp_path).path(first.key)
    (entry / "kernel.cubin").write_bytes(first.cubin[:100])
    compile_module._in_memory.clear()  # as a new process would find it
    with pytest.warns(RuntimeWarning, match="corrupt"):
        again = compile_source(KERNEL, entry="fill")
    assert not again.from_cache
    assert again.cubin == first.cubin
    compile_module._in_memory.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        healed = compile_source(KERNEL, entry="fill")
    assert healed.from_cache
    assert healed.cubin == first.cubin


def child(code: str, folder: Path) -> subprocess.Popen:
    source = Path(tilewright.__file__).parent.parent
    environment = {**os.environ, "PYTHONPATH": str(source), cache_module.ENVIRONMENT_VARIABLE: str(folder)}
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip


def test_two_processes_that_compile_one_kernel_at_once_both_succeed(tmp_path):
    code = (
        "import os, time; from pathlib import Path; from tilewright.jit import compile_source\n"
        "from tilewright.jit.nvrtc import version; version()\n"
        f"Path({str(tmp_path)!r}, str(os.getpid())).touch()\n"
        f"while len(list(Path({str(tmp_path)!r}).glob('[0-9]*'))) < 2: time.sleep(0.001)\n"
        f"k = compile_source({KERNEL!r}, entry='fill'); print(k.key, len(k.cubin), k.from_cache)"
    )
    runs = [child(code, tmp_path / "cache") for _ in range(2)]
    outputs = [run.communicate(timeout=300) for run in runs]
    assert [run.returncode for run in runs] == [0, 0], outputs
    one, two = (out.split()[:2] for out, _ in outputs)
    assert one == two
    cache = KernelCache(tmp_path / "cache")
    assert cache.keys() == [one[0]]
    assert not [name for name in names(cache.folder) if ".new-" in name or ".trash-" in name]


def test_a_kill_in_the_middle_of_a_write_leaves_nothing_visible(tmp_path):
    code = (
        "import pathlib, time; from tilewright.jit.cache import KernelCache\n"
        "write = pathlib.Path.write_bytes\n"
        "def slow(path, data):\n"
        "    write(path, data[: len(data) // 2]); print('half', flush=True); time.sleep(600)\n"
        "pathlib.Path.write_bytes = slow\n"
        f"KernelCache().store({KEY!r}, {FILES!r})"
    )
    run = child(code, tmp_path)
    assert run.stdout.readline() == "half\n"
    run.send_signal(signal.SIGKILL)
    run.communicate(timeout=300)
    cache = KernelCache(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.load(KEY) is None
        assert cache.keys() == []
        assert cache.store(KEY, FILES)
    assert cache.load(KEY) == FILES


def test_a_full_disk_is_told_once_and_leaves_no_half_entry(cache, monkeypatch):
    def full(path: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.warns(RuntimeWarning, match="No space left") as told:
        stored = [cache.store(key, FILES) for key in (KEY, OTHER)]
    assert stored == [False, False]
    assert len(told) == 1
    monkeypatch.undo()
    assert cache.load(KEY) is None
    assert not [path for path in cache.folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize("kind", ["mode", "proc"])
def test_a_read_only_folder_is_done_without(tmp_path, kind):
    if kind == "mode" and os.geteuid() == 0:
        pytest.skip("root may write to a folder of any mode")
    tmp_path.chmod(0o500)
    try:
        folder = tmp_path if kind == "mode" else Path("/proc")  # where not even root makes folders
        with pytest.warns(RuntimeWarning, match=cache_module.ENVIRONMENT_VARIABLE):
            assert not KernelCache(folder).store(KEY, FILES)
    finally:
        tmp_path.chmod(0o700)


def test_a_folder_that_cannot_be_made_still_lets_kernels_compile(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    monkeypatch.setenv(cache_module.ENVIRONMENT_VARIABLE, str(blocked))
    with pytest.warns(RuntimeWarning, match=str(blocked)):
        kernel = compile_source(KERNEL.replace("1.5f", "2.5f"), entry="fill")
    assert kernel.cubin.startswith(b"\x7fELF")


@pytest.mark.parametrize("folder", ["x" * 300, "~nobody-has-this-name/x"])
def test_a_folder_that_cannot_be_is_done_without_everywhere(folder, tmp_path, monkeypatch):
    from tilewright.emu import compiled

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TILEWRIGHT_CACHE", folder)
    monkeypatch.delenv("TILEWRIGHT_TUNED", raising=False)
    assert compiled.library() is None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        assert KernelCache().load(KEY) is None
        store.Store("H200", "cuda13").table.check()


def test_clear_removes_every_entry(cache):
    cache.store(KEY, FILES)
    cache.store(OTHER, FILES)
    assert cache.clear() == 2
    assert cache.keys() == []
    assert cache.size() == 0


def test_an_exported_cache_comes_back_elsewhere_without_its_damaged_entries(cache, tmp_path):
    cache.store(KEY, FILES)
    cache.store(OTHER, FILES)
    truncate(cache.path(OTHER))
    with pytest.warns(RuntimeWarning, match="corrupt"):
        assert cache.export(tmp_path / "kernels.zip") == 1
    elsewhere = KernelCache(tmp_path / "elsewhere")
    assert elsewhere.load_archive(tmp_path / "kernels.zip") == 1
    assert elsewhere.load(KEY) == FILES
    assert [p.name for p in tmp_path.glob(".*")] == [], "no partial archive stays"


def test_a_persons_own_kernel_and_one_in_ptx_only_are_exported_and_taken_over(tmp_path, monkeypatch):
    class RunsPtx:
        runs_ptx = True

    monkeypatch.setenv(cache_module.ENVIRONMENT_VARIABLE, str(tmp_path / "here"))
    compile_source(KERNEL, entry="fill")
    with use_executor(RunsPtx()):
        compile_source(KERNEL, entry="fill", options=["--maxrregcount=32"])
    assert KernelCache(tmp_path / "here").export(tmp_path / "kernels.zip") == 2
    there = KernelCache(tmp_path / "there")
    assert there.load_archive(tmp_path / "kernels.zip") == 2
    assert {"kernel.entry", "kernel.ptx"} <= set(there.load(there.keys()[0]))


def test_foreign_archives_are_refused_and_change_nothing(cache, tmp_path):
    foreign = tmp_path / "foreign.zip"
    for member in ("../../evil", f"{KEY}/../../evil", f"{KEY}/kernel.exe", "A" * 64 + "/kernel.ptx", "readme.txt"):
        with zipfile.ZipFile(foreign, "w") as archive:
            archive.writestr(f"{OTHER}/kernel.ptx", "good")
            archive.writestr(member, "bad")
        with pytest.raises(CacheError, match="not an exported kernel cache"):
            cache.load_archive(foreign)
        assert cache.keys() == []
    foreign.write_bytes(b"PK not a zip")
    with pytest.raises(CacheError, match="cannot be read"):
        cache.load_archive(foreign)
    with pytest.raises(CacheError, match="cannot be read"):
        cache.load_archive(tmp_path / "nowhere.zip")
    with pytest.raises(CacheError, match="could not be exported"):
        cache.export(tmp_path / "no" / "such" / "folder.zip")


def test_an_export_replaces_an_older_one_and_no_other_file(cache, tmp_path):
    (tmp_path / "empty.zip").touch()  # as mktemp makes it
    for name in ("first.zip", "first.zip", "empty.zip"):
        assert cache.export(tmp_path / name) == 0
    damaged = (tmp_path / "first.zip").read_bytes().replace(b"PK\1\2", b"XXXX")
    (tmp_path / "damaged.zip").write_bytes(damaged)
    (tmp_path / "mine.cu").write_text("int x;")
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as other:
        other.writestr("mine.cu", "int x;")
    for name in ("mine.cu", "other.zip", "damaged.zip"):
        before = (tmp_path / name).read_bytes()
        with pytest.raises(CacheError, match="a file is there that is not an exported kernel cache"):
            cache.export(tmp_path / name)
        assert (tmp_path / name).read_bytes() == before


def test_the_folder_follows_the_environment_and_else_the_platform(tmp_path, monkeypatch):
    monkeypatch.setenv(cache_module.ENVIRONMENT_VARIABLE, str(tmp_path))
    assert cache_module.default_folder() == tmp_path
    monkeypatch.delenv(cache_module.ENVIRONMENT_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_module.default_folder() == tmp_path / "xdg" / "tilewright"


def test_a_kernel_loads_from_the_cache_in_less_time_than_it_compiles(tmp_path, monkeypatch):
    monkeypatch.setenv(cache_module.ENVIRONMENT_VARIABLE, str(tmp_path))
    start = time.perf_counter()
    assert not compile_source(KERNEL, entry="fill").from_cache
    cold = time.perf_counter() - start
    times = []
    for _ in range(5):
        compile_module._in_memory.clear()
        start = time.perf_counter()
        assert compile_source(KERNEL, entry="fill").from_cache
        times.append(time.perf_counter() - start)
    assert min(times) < cold


@pytest.fixture
def locked(monkeypatch, tmp_path):
    """The folders of kernels and results may not be read, as another user's may not."""
    glob = Path.glob

    def denied(folder, pattern):
        if tmp_path in folder.parents:
            raise PermissionError(errno.EACCES, "Permission denied")
        return glob(folder, pattern)

    for variable in (cache_module.ENVIRONMENT_VARIABLE, store.ENVIRONMENT_VARIABLE):
        monkeypatch.setenv(variable, str(tmp_path))
    monkeypatch.setattr(Path, "glob", denied)


@pytest.mark.parametrize("command", [("cache", "info"), ("cache", "clear"), ("tune", "--list")])
def test_folders_that_may_not_be_read_are_said_in_one_line(locked, monkeypatch, capsys, command):
    monkeypatch.setattr(sys, "argv", ["tilewright", *command])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_doctor_goes_on_where_the_cache_may_not_be_read(locked):
    (finding,) = (found for found in examine() if found.name == "kernel cache")
    assert not finding.found
    assert "Permission denied" in finding.detail


def test_plans_are_made_where_results_of_tuning_may_not_be_read(locked):
    assert not len(tables.store_of(find_gpu("RTX 3090")).table)


def test_clear_and_import_do_not_count_what_was_not_done(cache, tmp_path, monkeypatch):
    cache.store(KEY, FILES)
    cache.export(tmp_path / "kernels.zip")
    with monkeypatch.context() as patch:
        patch.setattr(cache, "_discard", lambda path: False)
        with pytest.raises(CacheError, match="0 kernels removed; 1 in"):
            cache.clear()
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with pytest.raises(CacheError, match="0 of the 1 kernels"), pytest.warns(RuntimeWarning, match="cannot be written"):
        KernelCache(blocked).load_archive(tmp_path / "kernels.zip")


def test_a_damaged_archive_is_refused_unless_all_of_it_can_still_be_read(cache, tmp_path, request):
    for key in (KEY, OTHER):
        cache.store(key, FILES)
    cache.export(tmp_path / "kernels.zip")
    sound = (tmp_path / "kernels.zip").read_bytes()
    refused, step = 0, 1 if request.config.getoption("--whole") else 3
    for place in range(0, len(sound), step):
        (tmp_path / "kernels.zip").write_bytes(sound[:place] + bytes([sound[place] ^ 0x03]) + sound[place + 1 :])
        there = KernelCache(tmp_path / f"there{place}")
        try:
            there.load_archive(tmp_path / "kernels.zip")  # any other error is a traceback
        except CacheError:
            refused += 1
            assert there.keys() == [], f"byte {place}: refused, but something was taken over"
            continue
        loaded = [there.load(key) for key in (KEY, OTHER)]
        assert loaded == [FILES, FILES], f"byte {place}: accepted, but not what was exported"
    assert refused > len(sound) / step / 2


# --- bounds ----------------------------------------------------------------------------------------------------------


def key_of(number: int) -> str:
    return f"{number:064x}"


def fill(cache: KernelCache, count: int, first: int = 0) -> None:
    """Entries of 10 kB each, used one a second, long ago."""
    for number in range(first, first + count):
        assert cache.store(key_of(number), {**FILES, "kernel.log": bytes(10_000)})
        os.utime(cache.path(key_of(number)), (1e9 + number, 1e9 + number))


@pytest.fixture
def bound(monkeypatch) -> int:
    monkeypatch.setenv(limits.CACHE_SIZE_VARIABLE, "100K")
    return 100 << 10


def test_the_cache_stays_within_its_size_and_drops_what_was_used_longest_ago(cache, bound):
    fill(cache, 8)
    assert cache.load(key_of(0)) is not None, "used again: now the latest"
    fill(cache, 6, first=8)
    keys = cache.keys()
    assert cache.size() <= bound
    assert key_of(0) in keys
    assert key_of(1) not in keys
    assert key_of(13) in keys
    assert keys[1:] == [key_of(number) for number in range(14 - len(keys) + 1, 14)], "the latest stay"


def test_an_entry_larger_than_the_cache_may_be_is_not_stored_and_drops_nothing(cache, bound, monkeypatch):
    fill(cache, 2)
    assert not cache.store(KEY, {"kernel.cubin": bytes(2 * bound)})
    monkeypatch.setenv(limits.CACHE_SIZE_VARIABLE, "0")
    assert not cache.store(KEY, FILES)
    assert cache.keys() == [key_of(0), key_of(1)]


@pytest.mark.parametrize("damage", ["", "12", "many\n", None])
def test_a_running_total_that_is_lost_or_damaged_is_counted_anew(cache, bound, damage):
    fill(cache, 8)
    total = cache.folder / ".bytes"
    total.unlink() if damage is None else total.write_text(damage)
    fill(cache, 8, first=8)
    assert cache.size() <= bound
    assert key_of(15) in set(cache.keys())


def test_what_killed_processes_left_is_removed_and_what_is_being_written_is_not(cache, bound):
    fill(cache, 1)
    left, fresh = (cache.path(key_of(0)).with_name(name) for name in (".new-left", ".new-fresh"))
    for folder in (left, fresh):
        folder.mkdir()
        (folder / "kernel.cubin").write_bytes(b"half")
    os.utime(left, (1e9, 1e9))
    fill(cache, 12, first=1)
    assert not left.exists()
    assert fresh.exists()


def test_two_processes_that_make_room_at_once_keep_the_bound_and_whole_entries(tmp_path, bound):
    code = (
        "import sys; from tilewright.jit.cache import KernelCache\n"
        "cache = KernelCache(); files = {'kernel.cubin': bytes(10_000)}\n"
        "for number in range(60):\n"
        "    key = f'{number % 20:064x}'; found = cache.load(key); assert found in (None, files)\n"
        "    assert found or cache.store(key, files)\n"
    )
    runs = [child(code, tmp_path) for _ in range(2)]
    outputs = [run.communicate(timeout=300) for run in runs]
    assert [run.returncode for run in runs] == [0, 0], outputs
    assert KernelCache(tmp_path).size() <= bound + 2 * 64, "beside the entries only the total"


def test_a_kill_while_room_is_made_leaves_a_cache_that_goes_on(tmp_path, bound):
    fill(KernelCache(tmp_path), 8)
    code = (
        "import time; from tilewright.jit.cache import KernelCache\n"
        "discard = KernelCache._discard\n"
        "def slow(self, path):\n"
        "    done = discard(self, path); print('one', flush=True); time.sleep(600); return done\n"
        "KernelCache._discard = slow\n"
        f"KernelCache().store({KEY!r}, {{'kernel.cubin': bytes(50_000)}})"
    )
    run = child(code, tmp_path)
    assert run.stdout.readline() == "one\n"
    run.kill()
    run.communicate(timeout=300)
    cache = KernelCache(tmp_path)
    fill(cache, 8, first=8)
    assert cache.size() <= bound
    assert key_of(15) in set(cache.keys())


def test_a_disk_that_is_full_or_read_only_for_the_total_still_keeps_kernels(cache, bound, monkeypatch):
    def full(path: Path, text: str) -> int:
        if path.name == ".bytes":
            raise OSError(28, "No space left on device", str(path))
        return write(path, text)

    def read_only(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    write = Path.write_text
    monkeypatch.setattr(Path, "write_text", full)
    monkeypatch.setattr(os, "utime", read_only)
    for number in range(12):
        assert cache.store(key_of(number), {"kernel.cubin": bytes(10_000)})
        assert cache.load(key_of(number)) is not None
    assert cache.size() <= bound


def test_a_process_holds_as_many_kernels_as_its_variable_says_and_no_lock_of_those_it_has(tmp_path, monkeypatch):
    monkeypatch.setenv(cache_module.ENVIRONMENT_VARIABLE, str(tmp_path))
    monkeypatch.setenv(limits.KERNELS_VARIABLE, "2")
    compile_module._in_memory.clear()
    held = set(compile_module._locks)  # tracebacks of earlier tests may hold some
    sources = [KERNEL.replace("1.5f", f"{number}.25f") for number in range(3)]
    first, second, third = (compile_source(source, entry="fill") for source in sources)
    assert len(compile_module._in_memory) == 2
    assert compile_source(sources[2], entry="fill") is third
    assert compile_source(sources[1], entry="fill") is second
    again = compile_source(sources[0], entry="fill")
    assert again is not first
    assert again.from_cache
    assert compile_source(sources[2], entry="fill") is not third, "it was used longest ago"
    assert set(compile_module._locks) <= held


@pytest.mark.parametrize(("text", "value"), [("", 7), ("5", 5), ("2k", 2048), ("1.5 G", 3 << 29), ("64MiB", 1 << 26)])
def test_sizes_are_read_as_people_write_them(text, value):
    assert limits._number("SIZE", text, 7) == value


@pytest.mark.parametrize("text", ["many", "-1", "2 gigs", "G"])
def test_a_size_that_is_none_is_said_once_and_the_default_is_used(text):
    with pytest.warns(RuntimeWarning, match=f"SIZE is '{text}', which is not a size") as told:
        assert [limits._number("SIZE", text, 7) for _ in range(2)] == [7, 7]
    assert len(told) == 1


def test_what_a_cache_has_no_room_for_is_said(tmp_path, monkeypatch):
    full = KernelCache(tmp_path / "full")
    full.store("0" * 64, {"kernel.cubin": bytes(999)})
    full.export(tmp_path / "k.zip")
    monkeypatch.setenv(limits.CACHE_SIZE_VARIABLE, "0")
    with pytest.raises(CacheError, match=r"^0 of the 1 kernels .* at most 0 bytes together \(TILEWRIGHT_CACHE_SIZE\)"):
        KernelCache(tmp_path / "empty").load_archive(tmp_path / "k.zip")
