"""Does every machine join one training? Launcher, machines, processes, ranks, the meeting point.

Judged on an accelerate file as it would be launched as it stands; a submission's own topology is written by
rankcall, so these rules are silent there. Sources: `accelerate/utils/launch.py`, and two-machine runs.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping

from coordinator.checks.edits import put
from coordinator.checks.files import nearest
from coordinator.checks.subject import Findings, Subject, mapping, shown, whole
from coordinator.core.words import are, counted

LAUNCHERS = ("pdsh", "standard", "openmpi", "mvapich", "mpich", "nossh", "slurm")
_ALONE = ("NO", "MULTI_CPU")
_CONTAINER_ID = re.compile(r"^[0-9a-f]{12}$")
_DOCKER_BRIDGE = ipaddress.ip_network("172.17.0.0/16")
_HIGHEST_PORT = 65535
_STANDARD = put("standard", "deepspeed_config", "deepspeed_multinode_launcher")


def _standing(subject: Subject) -> Mapping[str, object] | None:
    """The accelerate file's values where they are judged as they stand."""
    if subject.accelerate is None or subject.purpose != "check":
        return None
    return subject.accelerate.values


def _machines(values: Mapping[str, object]) -> int:
    """Machines that accelerate would reckon with; 1 where the file does not say."""
    return whole(values.get("num_machines", 1)) or 1


def _count(value: object) -> int | None:
    """A count as accelerate needs it: it divides and compares, so that text is a TypeError."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 1 else None


def _typed(value: object) -> str:
    return f"'{shown(value)}'" if isinstance(value, str) else shown(value)


def _ranks(machines: int) -> str:
    return "the only rank is 0" if machines == 1 else f"ranks are 0 to {machines - 1}"


def _meant_for_several(subject: Subject, values: Mapping[str, object]) -> str | None:
    """Why the file must be meant for several machines, though it says one; None where nothing shows it."""
    if subject.asked_nodes is not None:
        return f"{subject.asked_nodes} nodes are asked for" if subject.asked_nodes > 1 else None
    if (whole(values.get("machine_rank")) or 0) > 0:
        return f"machine_rank is {shown(values.get('machine_rank'))}"
    address = values.get("main_process_ip")
    if not _is_absent(address) and not _is_loopback(str(address)):
        return f"main_process_ip is {shown(address)}"
    return None


def _for_several(subject: Subject, values: Mapping[str, object]) -> bool:
    """Several machines; one that is called so and merely gives an address is one."""
    if _machines(values) > 1:
        return True
    why = _meant_for_several(subject, values)
    return why is not None and not (values.get("num_machines") is not None and _only_address(why))


def _only_address(why: str) -> bool:
    return why.startswith("main_process_ip")


def _is_absent(address: object) -> bool:
    """Also the word None, which `accelerate config` users type for nothing."""
    return address is None or (isinstance(address, str) and address.strip().lower() in ("", "none", "null"))


def launcher(subject: Subject) -> Findings:
    """CFG101: anything but `standard` looks for a hostfile and SSH, and lets each machine train alone."""
    values = _standing(subject)
    if values is None or values.get("distributed_type") != "DEEPSPEED":
        return
    if not _for_several(subject, values):
        return
    section = mapping(values.get("deepspeed_config"))
    name = section.get("deepspeed_multinode_launcher")
    if name == "standard":
        return
    if name is None:
        message = "no `deepspeed_multinode_launcher`: accelerate takes pdsh, which needs SSH and a hostfile"
        yield subject.found_in_accelerate("CFG101", message, "deepspeed_config", edits=(_STANDARD,))
        return
    near = nearest(str(name), LAUNCHERS, cutoff=0.6) if name not in LAUNCHERS else None
    message = f"`deepspeed_multinode_launcher: {shown(name)}` goes to DeepSpeed's own launcher, which needs a hostfile"
    yield subject.found_in_accelerate(
        "CFG101",
        message,
        "deepspeed_config",
        "deepspeed_multinode_launcher",
        hint="did you mean `standard`?" if near == "standard" else None,
        edits=(_STANDARD,),
    )


def trains_alone(subject: Subject) -> Findings:
    """CFG106: distributed types under which several machines run one training each."""
    values = _standing(subject)
    if values is None or values.get("distributed_type") not in _ALONE:
        return
    if _for_several(subject, values) or (whole(values.get("num_processes")) or 1) > 1:
        kind = shown(values.get("distributed_type"))
        yield subject.found_in_accelerate(
            "CFG106",
            f"`distributed_type: '{kind}'` starts plain Python on each machine: each trains alone",
            "distributed_type",
        )


def machines(subject: Subject) -> Findings:
    """CFG107, CFG118: how many machines, against what else the file and the submission say."""
    values = _standing(subject)
    if values is None:
        return
    given = values.get("num_machines")
    count = _count(given)
    if given is not None and count is None:
        yield subject.found_in_accelerate(
            "CFG107", f"`num_machines: {_typed(given)}` is no number of machines", "num_machines"
        )
        return
    why = _meant_for_several(subject, values)
    if (count or 1) == 1 and why is not None:
        said = "`num_machines` is missing and counts as 1" if given is None else "`num_machines` is 1"
        # One machine that gives its own address works; whoever left the key out had several in mind.
        only_address = given is not None and _only_address(why)
        yield subject.found_in_accelerate(
            "CFG107",
            f"{said}, but {why}: every machine would start all processes itself",
            "num_machines",
            hint=f"write `num_machines: {subject.asked_nodes or 2}`",
            severity="warning" if only_address else "error",
            edits=(put(subject.asked_nodes, "num_machines"),) if subject.asked_nodes else (),
        )
    elif subject.asked_nodes is not None and count is not None and count != subject.asked_nodes:
        yield subject.found_in_accelerate(
            "CFG118",
            f"`num_machines: {count}`, but {are(subject.asked_nodes, 'node')} asked for",
            "num_machines",
        )


def processes(subject: Subject) -> Findings:
    """CFG108, CFG118: `num_processes` is the total, and is divided by the machines, rounded down."""
    values = _standing(subject)
    if values is None:
        return
    given = values.get("num_processes")
    total = _count(given)
    count = _machines(values)
    if given is None:
        if values.get("distributed_type") not in ("NO", False):
            yield subject.found_in_accelerate(
                "CFG108",
                "`num_processes` is missing: accelerate does not start",
                hint="write the number of GPUs of all machines together",
            )
        return
    if total is None:
        yield subject.found_in_accelerate(
            "CFG108", f"`num_processes: {_typed(given)}` is no number of processes", "num_processes"
        )
    elif total % count:
        lower = total // count * count
        options = f"{lower} or {lower + count}" if lower else str(count)
        yield subject.found_in_accelerate(
            "CFG108",
            f"`num_processes: {total}` on {count} machines is {total // count} each, rounded down without a word",
            "num_processes",
            hint=f"it is the total: write {options}",
        )
    elif subject.asked_gpus_per_node and total != count * subject.asked_gpus_per_node:
        yield subject.found_in_accelerate(
            "CFG118",
            f"`num_processes: {total}`, but {counted(count, 'node')} with"
            f" {counted(subject.asked_gpus_per_node, 'GPU')} {'is' if count == 1 else 'are'} asked for",
            "num_processes",
            hint=f"write `num_processes: {count * subject.asked_gpus_per_node}`",
        )


def rank(subject: Subject) -> Findings:
    """CFG109: a rank that no machine has makes the others wait for ever."""
    values = _standing(subject)
    if values is None:
        return
    given = values.get("machine_rank")
    count = _machines(values)
    if given is None:
        if count > 1:
            yield subject.found_in_accelerate(
                "CFG109",
                f"`machine_rank` is missing: each of the {count} machines takes itself for rank 0",
                "machine_rank",
                severity="warning",
            )
        return
    number = whole(given)
    if number is None or number < 0 or (count > 1 and number >= count):
        yield subject.found_in_accelerate(
            "CFG109",
            f"`machine_rank: {shown(given)}` with {counted(count, 'machine')}: {_ranks(count)}",
            "machine_rank",
        )


def meeting_point(subject: Subject) -> Findings:
    """CFG110, CFG111, CFG119: the address and port where all machines meet."""
    values = _standing(subject)
    if values is None or not _for_several(subject, values):
        return
    yield from _address(subject, values.get("main_process_ip"))
    yield from _port(subject, values.get("main_process_port"))


def _address(subject: Subject, given: object) -> Findings:
    if _is_absent(given):
        yield subject.found_in_accelerate(
            "CFG110",
            "`main_process_ip` is missing: the machines would look for a host named None",
            "main_process_ip",
        )
        return
    address = str(given).strip()
    if _is_loopback(address) or address in ("0.0.0.0", "::"):  # noqa: S104 - read from a file, not bound
        yield subject.found_in_accelerate(
            "CFG110", f"`main_process_ip: {shown(address)}` is each machine itself", "main_process_ip"
        )
    elif re.fullmatch(r"[^:]+:\d+", address) or "/" in address:
        yield subject.found_in_accelerate(
            "CFG110",
            f"`main_process_ip: {shown(address)}` is not an address alone",
            "main_process_ip",
            hint="write the address; the port goes to `main_process_port`",
        )
    elif not isinstance(given, str) or not _could_be_host(address):
        yield subject.found_in_accelerate(
            "CFG110", f"`main_process_ip: {shown(given)}` is no address", "main_process_ip"
        )
    elif _CONTAINER_ID.match(address):
        yield subject.found_in_accelerate(
            "CFG119",
            f"`main_process_ip: {address}` looks like a container's id, which other machines cannot resolve",
            "main_process_ip",
        )
    elif _in_docker_bridge(address):
        yield subject.found_in_accelerate(
            "CFG119",
            f"`main_process_ip: {address}` is an address of Docker's bridge, which ends at its own machine",
            "main_process_ip",
        )


def _port(subject: Subject, given: object) -> Findings:
    if given is None:
        return  # accelerate takes 29500 on every machine
    port = whole(given)
    if port == 0:
        yield subject.found_in_accelerate(
            "CFG111",
            "`main_process_port: 0` makes every machine pick a port of its own",
            "main_process_port",
            edits=(put(29500, "main_process_port"),),
        )
    elif port is None or not 0 < port <= _HIGHEST_PORT:
        yield subject.found_in_accelerate(
            "CFG111", f"`main_process_port: {shown(given)}` is no port", "main_process_port"
        )
    elif isinstance(given, str):
        yield subject.found_in_accelerate(
            "CFG111",
            f"`main_process_port` is text: rank 0 ends with a TypeError when it looks whether port {port} is free",
            "main_process_port",
            hint=f"write `main_process_port: {port}` without quotes",
            edits=(put(port, "main_process_port"),),
        )


def gpu_ids(subject: Subject) -> Findings:
    """CFG114: device indices that hold for one machine only."""
    values = _standing(subject)
    if values is None:
        return
    given = values.get("gpu_ids")
    if given is None or given == "all":
        return
    per_machine = (whole(values.get("num_processes")) or 1) // _machines(values)
    listed = [part for part in str(given).split(",") if part.strip()]
    if not isinstance(given, str):
        yield subject.found_in_accelerate(
            "CFG114",
            f"`gpu_ids: {shown(given)}` must be text: accelerate calls `.split` on it",
            "gpu_ids",
            hint=f"write `gpu_ids: '{shown(given)}'` or `gpu_ids: all`",
            severity="error",
            edits=(put("all", "gpu_ids"),),
        )
    elif len(listed) < per_machine:
        yield subject.found_in_accelerate(
            "CFG114",
            f"`gpu_ids: {shown(given)}` names {counted(len(listed), 'GPU')} for {counted(per_machine, 'process')} per machine",
            "gpu_ids",
            severity="error",
            edits=(put("all", "gpu_ids"),),
        )
    else:
        yield subject.found_in_accelerate(
            "CFG114",
            f"`gpu_ids: {shown(given)}` holds for every machine alike",
            "gpu_ids",
            edits=(put("all", "gpu_ids"),),
        )


def _is_loopback(address: str) -> bool:
    if address.lower() in ("localhost", "localhost.localdomain"):
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _in_docker_bridge(address: str) -> bool:
    try:
        return ipaddress.ip_address(address) in _DOCKER_BRIDGE
    except ValueError:
        return False


def _could_be_host(address: str) -> bool:
    if re.fullmatch(r"[\d.]+", address) or ":" in address:
        try:
            ipaddress.ip_address(address.strip("[]"))
        except ValueError:
            return False
        return True
    return re.fullmatch(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252})", address) is not None


RULES = (launcher, trains_alone, machines, processes, rank, meeting_point, gpu_ids)
