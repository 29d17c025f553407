"""InfiniBand between replicas: which ports a container may use, and whether all share a fabric."""

from __future__ import annotations

from pathlib import Path

import pytest
from world import World

from agent.infiniband import ports
from coordinator.assignment import Work, plan
from coordinator.core.protocol import CollectiveTask, Facts, GpuFacts, InfinibandPort, Stage
from coordinator.core.views import Submission
from coordinator.match import match
from coordinator.match.fabric import infiniband

PREFIX = "fe80:0000:0000:0000"


def adapter(root: Path, name: str, number: int, *, port: str = "1", device: bool = True, **said: str) -> None:
    """An adapter with one port, as the kernel shows it under /sys and /dev."""
    folder = root / "sys" / "infiniband" / name / "ports" / port
    (folder / "gids").mkdir(parents=True)
    words = {"link_layer": "InfiniBand", "state": "4: ACTIVE", "sm_lid": "0x1", **said}
    for key, value in words.items():
        (folder / key).write_text(f"{value}\n")
    (folder / "gids" / "0").write_text(f"{PREFIX}:88e9:a4ff:ff12:{number:04x}\n")
    verbs = root / "sys" / "infiniband_verbs" / f"uverbs{number}"
    verbs.mkdir(parents=True)
    (verbs / "ibdev").write_text(f"{name}\n")
    (root / "dev").mkdir(exist_ok=True)
    if device:
        (root / "dev" / f"uverbs{number}").touch()


def found(root: Path) -> list[str]:
    return [port.name for port in ports(root / "sys", root / "dev")]


def test_only_ports_that_are_up_and_may_be_opened_count(tmp_path: Path) -> None:
    adapter(tmp_path, "mlx5_0", 0)
    adapter(tmp_path, "mlx5_1", 1, state="1: DOWN")
    adapter(tmp_path, "mlx5_2", 2, link_layer="Ethernet")
    adapter(tmp_path, "mlx5_3", 3, device=False)  # the host's: /sys shows it to every container
    adapter(tmp_path, "mlx5_4", 4, port="2")
    assert found(tmp_path) == ["mlx5_0:1", "mlx5_4:2"]
    (port, _) = ports(tmp_path / "sys", tmp_path / "dev")
    assert port.subnet == f"{PREFIX} 0x1"


def test_a_machine_without_adapters_has_no_ports(tmp_path: Path) -> None:
    assert found(tmp_path) == []


def facts(*subnets: str, memlock: int = -1, chosen: dict[str, str] | None = None) -> Facts:
    gpu = GpuFacts(index=0, name="NVIDIA H100", compute_capability="9.0", memory_bytes=80 << 30)
    return Facts(
        gpus=(gpu,),
        torch_ready=True,
        limits={"memlock": memlock},
        infiniband=tuple(
            InfinibandPort(name=f"mlx5_{number}:1", subnet=subnet) for number, subnet in enumerate(subnets)
        ),
        chosen=chosen or {},
    )


@pytest.mark.parametrize(
    ("replicas", "used"),
    [
        ([facts("a"), facts("a")], {"r-0": ("mlx5_0:1",), "r-1": ("mlx5_0:1",)}),
        ([facts("b", "a"), facts("a", "c")], {"r-0": ("mlx5_1:1",), "r-1": ("mlx5_0:1",)}),
        ([facts("a"), facts("b")], {}),
        ([facts("a"), facts()], {}),
        ([facts("a"), facts("a", memlock=64 << 10)], {}),
        ([facts("a")], {}),
        ([facts(), facts()], {}),
    ],
)
def test_infiniband_is_used_where_every_replica_has_a_port_of_one_subnet(
    replicas: list[Facts], used: dict[str, tuple[str, ...]]
) -> None:
    assert infiniband({f"r-{number}": one for number, one in enumerate(replicas)}) == used


def codes(*replicas: Facts) -> list[str]:
    by_id = {f"r-{number}": one for number, one in enumerate(replicas)}
    return [one.code for one in match(by_id, gpus_per_node=1) if one.code in ("ENV031", "ENV032", "ENV033")]


def test_infiniband_that_only_some_have_is_said_to_be_unused() -> None:
    assert codes(facts("a"), facts("a")) == []
    assert codes(facts("a"), facts()) == ["ENV033"]
    assert codes(facts("a", memlock=0), facts("a")) == ["ENV033"]


def test_what_containers_tell_nccl_is_said_and_a_difference_is_a_warning() -> None:
    same = {"NCCL_DEBUG": "INFO", "NCCL_SOCKET_IFNAME": "eth0"}
    assert codes(facts(chosen=same), facts(chosen=same)) == ["ENV031", "ENV031"]
    other = {"NCCL_SOCKET_IFNAME": "eth1"}  # names a part of that replica, and may well differ
    assert codes(facts(chosen=same), facts(chosen=other)) == ["ENV031", "ENV031"]
    assert codes(facts(chosen={"NCCL_ALGO": "Ring"}), facts()) == ["ENV032", "ENV031"]


def test_the_handshake_and_the_training_get_what_the_facts_say() -> None:
    world = World("a", "b")
    chosen = {"NCCL_SOCKET_IFNAME": "bond0"}
    for replica_id, seen in world.replicas.items():
        assert seen.facts is not None
        known = facts("a", chosen=chosen).model_copy(update={"packages": seen.facts.packages})
        registration = seen.registration.model_copy(update={"gpu_count": 1})
        world.observe(replica_id, facts=known, registration=registration)
    world.submit()
    world.step()
    world.step()
    world.pass_stage(Stage.TCP)
    attempt = world.attempt()
    seat = attempt.seats[1]
    job, work = world.jobs["job00001"], Work(Submission(config="base_model: m\n"))
    task = plan(job, work, attempt, seat, world.replicas[seat.replica_id].facts).task
    assert isinstance(task, CollectiveTask)
    assert task.environment["NCCL_IB_HCA"] == "=mlx5_0:1"
    assert task.environment["NCCL_SOCKET_IFNAME"] == "bond0", (
        "the check runs with what the training will have"
    )
    world.pass_stage(Stage.COLLECTIVE)
    prepared = plan(job, work, world.attempt(), seat, world.replicas[seat.replica_id].facts)
    assert prepared.environment["NCCL_IB_HCA"] == "=mlx5_0:1"
    assert "NCCL_SOCKET_IFNAME" not in prepared.environment, "the container's own stays"
