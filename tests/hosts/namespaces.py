"""Hosts on one machine: network namespaces on a bridge, each with its own addresses, name and firewall.

A `Host` stands for a replica's container: what runs "on" it sees its interfaces, its ports and its host name
only. A test that needs real addresses, a real `connect` that times out or a real lost packet uses these;
`conftest.py` gives them as the fixture `hosts`. Needs root, iproute2 and iptables.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import ipaddress
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pytest

ROOT = Path(__file__).parents[2]
PREFIX = "rankcall"
_LOCKS = Path("/tmp")
_NETNS = Path("/etc/netns")
_NAMESPACES = Path("/run/netns")
_CLONE_NEWNET = 0x40000000
_SEQUENCE = itertools.count(1)
_KILL_S = 5.0
# `ip netns exec` lays a new /sys over the old one, without what was mounted in that.
_SEE_GROUPS = (
    "{ mount -t tmpfs none /sys/fs/cgroup && mkdir /sys/fs/cgroup/memory"
    " && mount -t cgroup -o memory none /sys/fs/cgroup/memory"
    " || { umount /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup; }; }"
)


class CannotMakeHosts(Exception):
    """This machine cannot make network namespaces; the argument says what it lacks."""


@dataclass
class Host:
    """One namespace. `address` is its IPv4 address on `eth0` ("" without), `address6` its IPv6 one.

    With `apart` each process started on it is pid 1 of a container of its own, and looks like one. With `groups` it sees
    control groups for memory, as a container does.
    """

    name: str
    namespace: str
    address: str
    address6: str
    interface: str = "eth0"
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)
    bound: dict[Path, Path] = field(default_factory=dict)
    apart: bool = False
    groups: bool = False

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(address for address in (self.address, self.address6) if address)

    def command(self, argv: Sequence[str]) -> list[str]:
        """`argv` as it runs on this host, with the host's own name and its own view of bound folders."""
        # `ip netns exec` has made a mount namespace of its own, so what is bound here is bound nowhere else.
        binds = [
            f"mount --bind {shlex.quote(f'{source}')} {shlex.quote(f'{at}')}"
            for at, source in self.bound.items()
        ]
        if self.groups:
            binds.insert(0, _SEE_GROUPS)
        script = " && ".join((*binds, f"hostname {self.name}", 'exec "$@"'))
        spaces = ["--uts", *(["--pid", "--fork", "--mount-proc"] if self.apart else [])]
        return ["ip", "netns", "exec", self.namespace, "unshare", *spaces, "sh", "-c", script, "sh", *argv]

    def popen(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: int | None = subprocess.DEVNULL,
        stdout: int | IO[bytes] | None = None,
        stderr: int | IO[bytes] | None = None,
        cwd: Path = ROOT,
    ) -> subprocess.Popen[bytes]:
        """Start a process on this host; whatever still runs when the test ends is killed."""
        process = subprocess.Popen(
            self.command(argv),
            env=_environment(env),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd=cwd,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def run(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_s: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """Run a process on this host to its end, its output captured."""
        return subprocess.run(
            self.command(argv),
            check=False,
            env=_environment(env),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            cwd=ROOT,
        )

    def python(self, code: str, *args: str, timeout_s: float = 60.0) -> str:
        """Run Python code with our packages on this host; its stdout.

        Raises:
            AssertionError: it failed; the message is its stderr.
        """
        done = self.run([sys.executable, "-c", code, *args], timeout_s=timeout_s)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def json(self, code: str, *args: str, timeout_s: float = 60.0) -> Any:
        return json.loads(self.python(code, *args, timeout_s=timeout_s))

    def ip(self, *words: str) -> None:
        """`ip` on this host, e.g. `host.ip("link", "set", "eth0", "down")`."""
        _ip("-n", self.namespace, *words)

    def iptables(self, *rule: str) -> None:
        """A firewall rule on this host, for both families where it names no address."""
        families = {family for word in rule if (family := _family(word))} or {"iptables", "ip6tables"}
        for program in families:
            _run(["ip", "netns", "exec", self.namespace, program, "-w", *rule])

    def drop_from(self, other: Host) -> None:
        """Packets that come from `other` vanish: one direction of one link."""
        for address in other.addresses:
            self.iptables("-A", "INPUT", "-s", address, "-j", "DROP")

    def reject_from(self, other: Host) -> None:
        """New connections from `other` are refused."""
        for address in other.addresses:
            refused = ("-j", "REJECT", "--reject-with", "tcp-reset")
            self.iptables("-A", "INPUT", "-s", address, "-p", "tcp", "--syn", *refused)

    def drop_large(self, limit_bytes: int = 1000) -> None:
        """Packets longer than `limit_bytes` vanish on their way out, and nobody is told: an MTU black hole."""
        self.iptables(
            "-A", "OUTPUT", "-p", "tcp", "-m", "length", "--length", f"{limit_bytes}:65535", "-j", "DROP"
        )

    def open_only(self, *ports: int) -> None:
        """A firewall that lets new connections in to these ports only."""
        self.iptables("-A", "INPUT", "-i", "lo", "-j", "ACCEPT")
        self.iptables("-A", "INPUT", "-m", "conntrack", "--ctstate", "ESTABLISHED,RELATED", "-j", "ACCEPT")
        for port in ports:
            self.iptables("-A", "INPUT", "-p", "tcp", "--dport", str(port), "-j", "ACCEPT")
        self.iptables("-A", "INPUT", "-p", "tcp", "-j", "DROP")

    def clear(self) -> None:
        """Take all firewall rules away, those that turn packets elsewhere too."""
        for table in ("filter", "nat"):
            self.iptables("-t", table, "-F")

    def resolve(self, *lines: str) -> None:
        """What /etc/hosts says on this host, for processes started from now on."""
        (_NETNS / self.namespace / "hosts").write_text("\n".join((*lines, "")))

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Connections that this thread opens within the block are opened on this host."""
        with Path("/proc/thread-self/ns/net").open() as home, (_NAMESPACES / self.namespace).open() as there:
            _enter(there.fileno())
            try:
                yield
            finally:
                _enter(home.fileno())

    def bind(self, at: Path, source: Path) -> None:
        """Show the folder `source` at `at` on this host alone, for processes started from now on."""
        at.mkdir(parents=True, exist_ok=True)
        self.bound[at] = source

    def listeners(self) -> dict[int, str]:
        """TCP ports that are listened on, with who does, as `ss` says it."""
        listed = self.run(["ss", "-Hltnp"]).stdout
        return {
            int(words[3].rpartition(":")[2]): " ".join(words[5:])
            for line in listed.splitlines()
            if (words := line.split())
        }

    def pids(self) -> list[int]:
        """Processes that run on this host."""
        return _pids(self.namespace)

    def end(self) -> None:
        """Kill whatever runs on this host."""
        until = time.monotonic() + _KILL_S
        while (pids := _pids(self.namespace)) and time.monotonic() < until:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for process in self.started:
                process.poll()
            time.sleep(0.02)
        for process in self.started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1)


@contextlib.contextmanager
def hosts(count: int, *, ipv4: bool = True, ipv6: bool = False) -> Iterator[tuple[Host, ...]]:
    """`count` hosts on one bridge: 10.77.k.1, 10.77.k.2 … and, with `ipv6`, fd77:k::1, fd77:k::2 …

    This machine's own network does not change: a browser would drop its connections. `Host.entered` reaches them.

    Raises:
        CannotMakeHosts: no root, or a tool or the kernel's support is missing.
    """
    check()
    _sweep()
    with _subnet() as subnet:
        made = f"{PREFIX}-{os.getpid()}-{next(_SEQUENCE)}"
        switch = f"{made}-switch"
        everyone: list[Host] = []
        try:
            _ip("netns", "add", switch)
            _ip(
                "-n",
                switch,
                "link",
                "add",
                "bridge",
                "type",
                "bridge",
                "stp_state",
                "0",
                "forward_delay",
                "0",
            )
            _ip("-n", switch, "link", "set", "bridge", "up")
            for number in range(1, count + 1):
                host = Host(
                    name=f"host-{number}",
                    namespace=f"{made}-{number}",
                    address=f"10.77.{subnet}.{number}" if ipv4 else "",
                    address6=f"fd77:{subnet:x}::{number:x}" if ipv6 else "",
                )
                everyone.append(host)
                _plug(host, switch, number)
            yield tuple(everyone)
        finally:
            for host in everyone:
                host.end()
            for namespace in (switch, *(host.namespace for host in everyone)):
                _delete(namespace)


MakeHosts = Callable[..., tuple[Host, ...]]


@contextlib.contextmanager
def making() -> Iterator[MakeHosts]:
    """What `hosts` is as a fixture: a function that makes hosts, and a failed test where they cannot be made."""
    with contextlib.ExitStack() as stack:

        def make(count: int, *, ipv4: bool = True, ipv6: bool = False) -> tuple[Host, ...]:
            try:
                return stack.enter_context(hosts(count, ipv4=ipv4, ipv6=ipv6))
            except CannotMakeHosts as problem:
                pytest.fail(f"this machine cannot stand for several hosts: {problem}", pytrace=False)

        yield make


def check() -> None:
    """Whether hosts can be made here.

    Raises:
        CannotMakeHosts: with what is missing.
    """
    if os.geteuid() != 0:
        raise CannotMakeHosts("network namespaces need root: run the tests as root")
    missing = [
        tool for tool in ("ip", "ss", "iptables", "ip6tables", "unshare") if shutil.which(tool) is None
    ]
    if missing:
        raise CannotMakeHosts(f"{', '.join(missing)} not found: apt-get install iproute2 iptables util-linux")
    probe = f"{PREFIX}-{os.getpid()}-probe"
    try:
        _ip("netns", "add", probe)
        _run(["ip", "netns", "exec", probe, "iptables", "-w", "-L", "-n"])
    except subprocess.CalledProcessError as problem:
        raise CannotMakeHosts(f"the kernel refuses: {problem.stderr.strip()}") from problem
    finally:
        _delete(probe)


def _plug(host: Host, switch: str, number: int) -> None:
    _ip("netns", "add", host.namespace)
    folder = _NETNS / host.namespace
    folder.mkdir(parents=True, exist_ok=True)
    # As in most containers: the host's own name leads to its own loopback.
    (folder / "hosts").write_text(f"127.0.0.1 localhost {host.name}\n::1 localhost\n")
    port = f"port{number}"
    _ip("link", "add", "eth0", "netns", host.namespace, "type", "veth", "peer", "name", port, "netns", switch)
    _ip("-n", switch, "link", "set", port, "master", "bridge", "up")
    host.ip("link", "set", "lo", "up")
    if host.address:
        host.ip("addr", "add", f"{host.address}/24", "dev", "eth0")
    if host.address6:
        # Without duplicate detection the address is usable at once.
        host.ip("addr", "add", f"{host.address6}/64", "dev", "eth0", "nodad")
    host.ip("link", "set", "eth0", "up")


@contextlib.contextmanager
def _subnet() -> Iterator[int]:
    """A subnet number that no other test run on this machine uses; the lock falls with the process."""
    for number in range(1, 255):
        path = _LOCKS / f"{PREFIX}-subnet-{number}.lock"
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            continue
        try:
            yield number
        finally:
            os.close(handle)
        return
    raise CannotMakeHosts("all 254 test subnets are in use")


def _sweep() -> None:
    """Remove what test runs left that were killed."""
    for name in _namespaces():
        owner = re.match(rf"{PREFIX}-(\d+)-", name)
        if owner and not Path(f"/proc/{owner[1]}").exists():
            for pid in _pids(name):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            _delete(name)


def _namespaces() -> list[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
    return [line.split()[0] for line in listed.splitlines() if line]


def _pids(namespace: str) -> list[int]:
    listed = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False)
    return [int(pid) for pid in listed.stdout.split()]


def _delete(namespace: str) -> None:
    subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)
    shutil.rmtree(_NETNS / namespace, ignore_errors=True)


def _environment(env: Mapping[str, str] | None) -> dict[str, str]:
    # Our packages are installed into the interpreter; nothing of the test run's own rankcall settings leaks.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RANKCALL_")}
    return {**kept, "PYTHONUNBUFFERED": "1", **(env or {})}


def _family(word: str) -> str | None:
    """The program that takes a rule with this address in it; None for a word that is no address."""
    try:
        return "iptables" if ipaddress.ip_interface(word).version == 4 else "ip6tables"
    except ValueError:
        return None


def _enter(namespace: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(namespace, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "a network namespace cannot be entered")


def _ip(*words: str) -> None:
    _run(["ip", *words])


def _run(argv: Sequence[str]) -> None:
    subprocess.run(argv, check=True, capture_output=True, text=True)
