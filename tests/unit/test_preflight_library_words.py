"""What the libraries print when they fail is told in words a user can act on."""

from __future__ import annotations

import pytest

from coordinator.preflight.library_words import understand


@pytest.mark.parametrize(
    ("line", "meaning"),
    [
        (
            "Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] Connection "
            "refused, remote=[127.0.0.1]:38211",
            "loopback",
        ),
        (
            "host-b:71:90 [0] NCCL INFO socketPollConnect: connect to 10.0.0.2<41231> returned Connection refused, "
            "retrying (3/34) after sleep for 100 msec",
            "refused",
        ),
        (
            "host-b:71:90 [0] NCCL INFO socketPollConnect: connect to 10.0.0.2<41231> returned No route to host, "
            "retrying (3/34) after sleep for 100 msec",
            "no answer",
        ),
        ("host-a:1:1 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found", "interface"),
        ("RuntimeError: Unable to find address for: eth7", "interface"),
        (
            "misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-X to 9637892 bytes, error: "
            "No space left on device (28)",
            "shared memory",
        ),
        ("CUDA error: no kernel image is available for execution on the device", "kernels"),
        (
            "Gloo connectFullMesh failed with timed out connecting: SO_ERROR: Operation now in progress",
            "no answer",
        ),
    ],
)
def test_known_lines_are_explained(line: str, meaning: str) -> None:
    known = understand(["[rank0] something else", line])
    assert known is not None
    assert meaning in known.meaning
    assert known.hint


def test_what_is_not_known_is_not_explained() -> None:
    assert understand(["NCCL INFO Using network Socket", ""]) is None


def test_the_most_telling_line_wins() -> None:
    refused = "connect to 10.0.0.2<41231> returned Connection refused, retrying (3/34)"
    full = "failed to extend /dev/shm/nccl-X: No space left on device"
    known = understand([refused, full])
    assert known is not None
    assert "shared memory" in known.meaning
