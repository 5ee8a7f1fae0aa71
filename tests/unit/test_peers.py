"""Peers: chosen by name, judged like a rung before anything is timed, raced, recorded with who was refused and why."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from tilewright.errors import ConfigRejected, DeviceError, MissingDependency
from tilewright.gemm.problem import GemmProblem
from tilewright.lab.check import Guarded
from tilewright.lab.ground import Buffers
from tilewright.lab.ladder import prepare
from tilewright.lab.numbers import to_stored
from tilewright.lab.peers import PEERS, Contender, Entrant, Peer, compete, entrant, select_peers
from tilewright.lab.peers.compete import hold_race, peer_record
from tilewright.lab.record import went_wrong

PROBLEM = GemmProblem.dense(120, 40, 24, layout="nt", dtype="bf16")


class Memory:
    """One buffer of a GPU, as far as judging asks for it."""

    stream = ordinal = 0

    def upload(self, data: np.ndarray) -> int:
        self.bytes = data.copy()
        return 4096

    def download(self, address: int, nbytes: int) -> np.ndarray:
        return self.bytes.copy()

    def release(self, address: int) -> None:
        pass


@pytest.fixture
def ground(monkeypatch):
    monkeypatch.setattr(entrant, "bound_to", lambda ordinal: nullcontext())
    memory, given = Memory(), prepare(PROBLEM)
    operands = Buffers(None, None, None)  # type: ignore[arg-type]
    return SimpleNamespace(
        problem=PROBLEM, executor=memory, given=given, sets=[operands], where=SimpleNamespace(ordinal=0),
        references=None, last_judged=None, timed=lambda launches, seconds, against=None: {"ms": 1.0, "ratio": 1.5},
    )  # fmt: skip


def writes(ground, change=lambda stored: stored, text: str = "one") -> Entrant:
    """A candidate whose product is the right one after `change`."""
    product = change(to_stored(ground.given.library.astype(np.float32), "bf16").copy())

    def prepare(buffers):
        def launch(stream: int) -> None:
            place = buffers.out.address - 4096
            ground.executor.bytes[place : place + product.nbytes] = product.view(np.uint8).reshape(-1)

        return launch

    return Entrant(text, prepare)


def spoiled(row: int, col: int = 3):
    def change(stored):
        stored[row, col] ^= 0x0080  # twice or half the value
        return stored

    return change


def unwritten(stored):
    stored[7, 7] = Guarded((1, 1), "bf16").whole[0]
    return stored


def nan(stored):
    stored[50, 1] = 0x7FC0
    return stored


def test_a_right_product_is_right(ground):
    assert entrant.judge(writes(ground), ground).ok
    assert entrant.judge(writes(ground), ground, rows=7).ok


@pytest.mark.parametrize("change", [spoiled(0), spoiled(55), spoiled(119), unwritten, nan])
def test_a_product_wrong_in_one_element_is_wrong(ground, change):
    assert not entrant.judge(writes(ground, change), ground).ok


@pytest.mark.parametrize("row", [0, 119])
def test_the_first_and_the_last_row_are_among_those_judged_before_a_race(ground, row):
    assert not entrant.judge(writes(ground, spoiled(row)), ground, rows=7).ok


def test_an_element_left_unwritten_shows_in_any_row(ground):
    assert "1 elements unwritten" in entrant.judge(writes(ground, unwritten), ground, rows=2).reason


def test_the_same_bits_have_the_same_verdict_without_another_judgement(ground, monkeypatch):
    verdict = entrant.judge(writes(ground), ground)
    monkeypatch.setattr(entrant, "judged", None)  # calling it would raise
    assert entrant.judge(writes(ground), ground) is verdict
    with pytest.raises(TypeError):
        entrant.judge(writes(ground, spoiled(3)), ground)


def test_a_write_beside_the_output_is_seen(ground):
    right = writes(ground)

    def prepare(buffers):
        def launch(stream: int) -> None:
            right.prepare(buffers)(stream)
            ground.executor.bytes[buffers.out.address - 4096 + 2 * 120 * 40] ^= 1

        return launch

    assert "outside its output" in entrant.judge(Entrant("beside", prepare), ground, rows=7).reason


def fake_race(monkeypatch, speed: dict[str, float]) -> list[list[str]]:
    """Races decided by `speed`; what comes back fills with who ran in each."""
    ran: list[list[str]] = []

    def race(candidates, ground, rounds):
        ran.append([c.text for c in candidates])
        return [speed[c.text] for c in candidates]

    monkeypatch.setattr(compete, "race", race)
    return ran


def test_only_right_candidates_race_and_the_fastest_is_timed(ground, monkeypatch):
    ran = fake_race(monkeypatch, {"slow": 2.0, "fast": 1.0, "wrong": 0.1})
    entrants = [writes(ground, text="slow"), writes(ground, spoiled(0), "wrong"), writes(ground, text="fast")]
    record = peer_record(Peer("p", "", lambda g: Contender("1.0", entrants)), ground, "s", 1.0, {})
    assert ran[0] == ["slow", "fast"]
    assert (record["case"]["peer"], record["case"]["config_text"]) == ("p", "fast")
    assert record["result"]["right"] is True
    assert record["result"]["ratio"] == 1.5
    assert (record["result"]["candidates"], list(record["result"]["refused"])) == (3, ["wrong"])


def test_the_first_of_many_are_compared_in_pairs_and_the_best_there_is_recorded(ground, monkeypatch):
    names = [f"c{i}" for i in range(9)]
    fake_race(monkeypatch, {name: float(9 - i) for i, name in enumerate(names)})
    entry = Contender("1.0", [writes(ground, text=name) for name in names])
    finalists = names[: -compete.FINALISTS - 1 : -1]
    assert [c.text for c in hold_race(entry, ground).best] == finalists
    paired = []

    def timed(launches, seconds, against=None):
        paired.append(seconds)
        return {"ratio": 2.0 if len(paired) == 3 else 1.0}

    ground.timed, ground.references = timed, ["cuBLAS"]
    record = peer_record(Peer("p", "", lambda g: entry), ground, "s", 1.0, {})
    assert record["case"]["config_text"] == finalists[2]
    assert len(paired) == compete.FINALISTS + 1
    assert paired[-1] == 1.0 > paired[0]


def test_one_that_is_wrong_beyond_the_rows_judged_first_is_not_timed(ground, monkeypatch):
    monkeypatch.setattr(compete, "ROWS", 2)
    fake_race(monkeypatch, {"a": 1.0, "b": 2.0})
    entrants = [writes(ground, spoiled(60), "a"), writes(ground, text="b")]
    record = peer_record(Peer("p", "", lambda g: Contender("1.0", entrants)), ground, "s", 1.0, {})
    assert record["case"]["config_text"] == "a"
    assert went_wrong(record)
    assert "ms" not in record["result"]


def test_what_a_library_raises_refuses_that_candidate_and_a_lost_gpu_ends_the_run(ground, monkeypatch):
    def failing(error):
        def prepare(buffers):
            raise error

        return Entrant("failing", prepare)

    fake_race(monkeypatch, {"one": 1.0})
    field = hold_race(Contender("", [failing(RuntimeError("too much shared memory")), writes(ground)]), ground)
    assert field.refused == {"failing": "RuntimeError: too much shared memory"}
    assert [c.text for c in field.best] == ["one"]
    with pytest.raises(DeviceError):
        hold_race(Contender("", [failing(DeviceError("lost")), writes(ground)]), ground)


def test_a_peer_whose_candidates_all_fail_is_wrong_and_says_why(ground):
    entrants = [writes(ground, spoiled(0), "a"), writes(ground, nan, "b")]
    record = peer_record(Peer("p", "", lambda g: Contender("1.0", entrants)), ground, "s", 1.0, {})
    assert went_wrong(record)
    assert record["result"]["reason"].startswith("a: at (0, 3) it is")


@pytest.mark.parametrize("error", [MissingDependency("not here. Install it"), ConfigRejected("odd k")])
def test_a_peer_that_is_not_there_or_cannot_is_a_record_that_says_why_and_no_mistake(ground, error):
    def enter(ground):
        raise error

    record = peer_record(Peer("p", "", enter), ground, "s", 1.0, {})
    assert record["result"] == {"right": None, "reason": str(error)}
    assert not went_wrong(record)


def test_peers_are_chosen_by_name():
    assert select_peers("all") == PEERS
    assert select_peers("none") == ()
    assert [peer.id for peer in select_peers("triton, cublas,triton")] == ["triton", "cublas"]
    with pytest.raises(ConfigRejected, match=r"'cutlas'.*cutlass_tuned"):
        select_peers("cutlas")


def test_triton_that_is_not_installed_is_named_with_the_way_to_get_it(monkeypatch):
    (peer,) = select_peers("triton")

    def absent(wanted: str):
        raise ImportError(f"No module named {wanted.split('.')[0]!r}")

    monkeypatch.setattr("tilewright.lab.peers.triton_matmul.import_module", absent)
    with pytest.raises(MissingDependency, match=r"torch(.|\n)*tilewright\[triton\]"):
        peer.enter(SimpleNamespace(problem=PROBLEM))


def test_cublaslt_that_is_not_installed_is_named_with_the_way_to_get_it(monkeypatch):
    (peer,) = select_peers("cublaslt_best")

    def absent(place: str):
        raise OSError(f"{place}: cannot open shared object file")

    monkeypatch.setattr("tilewright.lab.peers.cublaslt_library.ctypes.CDLL", absent)
    with pytest.raises(MissingDependency, match=r"libcublasLt(.|\n)*tilewright\[cublaslt\]"):
        peer.enter(SimpleNamespace(problem=PROBLEM, executor=None))
