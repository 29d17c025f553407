"""Lines known from public failures are recognised, and no line keeps who looks for them busy."""

from __future__ import annotations

import pytest

from coordinator.core.last_words import last_words
from coordinator.core.trouble import TROUBLES, trouble_in


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "out-of-gpu-memory"),
        ("E1130 api.py:1002] failed (exitcode: -9) local_rank: 0 (pid: 123)", "killed"),
        ("RuntimeError: The server socket has failed to bind to 0.0.0.0:29500 (errno: 98)", "address-in-use"),
        (
            "ConnectionError: Tried to launch distributed communication on port `29500`, but another process is "
            "utilizing it.",
            "address-in-use",
        ),
        (
            "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to "
            "connect to (10.0.9.59, 29500).",
            "rendezvous-timeout",
        ),
        (
            "RuntimeError: Gloo connectFullMesh failed with Connection refused, remote=[127.0.0.1]:40001",
            "gloo-mesh",
        ),
        (
            "RuntimeError: CUDA error: no kernel image is available for execution on the device",
            "arch-not-built",
        ),
        (
            "node1:12:12 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found",
            "nccl-no-interface",
        ),
        (
            "[rank1]:[E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE)",
            "collective-timeout",
        ),
        ("Exception: Current loss scale already at minimum - cannot decrease scale anymore.", "loss-scale"),
        ("OSError: [Errno 28] No space left on device", "disk-full"),
        ("ValueError: Can't find a valid checkpoint at ./outputs/checkpoint-20", "missing-checkpoint"),
        ("[rank0]: KeyError: 'text'", "exception"),
    ],
)
def test_lines_of_known_failures_are_recognised(line: str, name: str) -> None:
    found = trouble_in(line)
    assert found is not None
    assert found.name == name


def test_every_kind_of_trouble_has_a_name_of_its_own_a_cause_and_a_hint() -> None:
    assert len({trouble.name for trouble in TROUBLES}) == len(TROUBLES)
    assert all(trouble.cause.endswith(".") and trouble.hint.endswith(".") for trouble in TROUBLES)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("line", [" " * 60_000, "a: " * 20_000, "{'" * 30_000, "9%|" * 20_000])
def test_a_line_made_to_stall_the_reader_does_not(line: str) -> None:
    assert last_words(f"Starting trainer...\n{line}\n") == ()
