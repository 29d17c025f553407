"""`rankcall render`: what each rank would get, written to a folder or printed."""

from __future__ import annotations

import ipaddress
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from coordinator.cli.console import say, say_finding, write, write_json
from coordinator.cli.exits import Exit, Stop
from coordinator.cli.submission import Asked, read, rules_of, stop_if_refused, with_settings
from coordinator.core.views import RenderedFileView, RenderedView
from coordinator.core.words import are, counted
from coordinator.render import Rendered, RenderError, Site, Topology, render
from coordinator.render.model import ACCELERATE_FILE, AXOLOTL_FILE, COMPARE_FILE, DEEPSPEED_FILE

# All that a render may put into a rank's folder.
_WRITTEN = (ACCELERATE_FILE, AXOLOTL_FILE, DEEPSPEED_FILE, COMPARE_FILE, "environment", "commands")

_PREAMBLE = """\
#!/bin/sh
# What this rank runs, in the folder of the config (which holds what the config names), with this folder as ../attempt-1.
# By hand, in the config's folder:  cp -r WHERE-THIS-IS ../attempt-1 && . ../attempt-1/environment && sh ../attempt-1/commands
# All ranks at the same time; the Python that runs it has Axolotl and rankcall.
set -e
"""

# What the kernel takes as the name of an interface: 15 characters, no slash, no space.
_INTERFACE = re.compile(r"[A-Za-z0-9_.:-]{1,15}")
_HOST = re.compile(
    r"(?=.{1,253}$)[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*"
)
_NUMERIC = re.compile(r"[\d.]+")


@dataclass(frozen=True, slots=True)
class Wanted:
    """The topology to render for; `rank` None: all of them."""

    nodes: int
    gpus_per_node: int
    master_address: str
    master_port: int
    rank: int | None
    interface: str | None


def render_all(asked: Asked, wanted: Wanted, *, output: Path | None, why: bool, json: bool) -> None:
    """Renders every wanted rank of a config that the rules accept.

    Raises:
        Stop: for a config that the rules reject or nothing can be rendered from, or a folder that cannot be written.
    """
    if wanted.rank is not None and wanted.rank >= wanted.nodes:
        raise Stop(
            Exit.USAGE,
            f"Rank {wanted.rank} is not among {counted(wanted.nodes, 'node')}: ranks count from 0.",
        )
    _judge_address(wanted.master_address, wanted.nodes)
    if wanted.interface is not None and not _INTERFACE.fullmatch(wanted.interface):
        raise Stop(
            Exit.USAGE, f"--interface {wanted.interface!r} is no name of a network interface, such as eth0."
        )
    ranks = range(wanted.nodes) if wanted.rank is None else (wanted.rank,)
    _judge(asked)
    submission = with_settings(asked)
    try:
        topology = Topology(wanted.nodes, wanted.gpus_per_node, wanted.master_address, wanted.master_port)
        family = "ipv6" if ":" in wanted.master_address else "ipv4"
        rendered = {
            rank: render(
                submission, topology, Site(rank, wanted.interface, "ipv6" if family == "ipv6" else "ipv4")
            )
            for rank in ranks
        }
    except RenderError as error:
        place = ":".join(str(part) for part in (error.file, error.line, error.key) if part)
        raise Stop(Exit.FAILED, f"{f'{place}: ' if place else ''}{error.message}.") from None
    if output is not None:
        _write_all(output, rendered, every_rank=wanted.rank is None)
        say(f"{are(len(rendered), 'rank')} in {output}.")
    if json:
        write_json([_view(rank, one) for rank, one in rendered.items()])
    elif output is None:
        for rank, one in rendered.items():
            _print(rank, one)
    if why:
        _explain(next(iter(rendered.values())))


def _judge(asked: Asked) -> None:
    """What is rendered from a config that cannot work is of no use.

    Raises:
        Stop: with what is wrong.
    """
    judged = rules_of(asked, read(asked))
    stop_if_refused(asked, judged, "rendered")
    for one in judged.findings:
        if one.severity == "warning":
            say_finding(one)


def _judge_address(written: str, nodes: int) -> None:
    """
    Raises:
        Stop: for what no replica could reach rank 0 by.
    """
    said = f"--master-addr {written!r}"
    try:
        address = ipaddress.ip_address(written)
    except ValueError:
        host, _, port = written.rpartition(":")
        if port.isdigit() and ":" not in host.strip("[]"):
            hint = f"Write --master-addr {host} --master-port {port}."
            raise Stop(Exit.USAGE, f"{said} has a port in it.", hint=hint) from None
        if _NUMERIC.fullmatch(written) or not _HOST.fullmatch(written):
            raise Stop(Exit.USAGE, f"{said} is neither an IP address nor a host name.") from None
        if written.lower() == "localhost" and nodes > 1:
            raise Stop(
                Exit.USAGE, f"{said}: each of {nodes} replicas would look for rank 0 in itself."
            ) from None
        return
    if address.is_unspecified or address.is_multicast:
        raise Stop(Exit.USAGE, f"{said} is no address of a replica.")
    if address.is_loopback and nodes > 1:
        raise Stop(Exit.USAGE, f"{said}: each of {nodes} replicas would look for rank 0 in itself.")


def _write_all(output: Path, rendered: Mapping[int, Rendered], *, every_rank: bool) -> None:
    """A folder for each rank, and nothing left there of an earlier render; files of the user's own stay."""
    try:
        if output.is_dir():
            for folder in sorted(output.iterdir()):
                match = re.fullmatch(r"rank-([0-9]{1,4})", folder.name)
                if match is not None and (every_rank or int(match[1]) in rendered):
                    _clear(folder)
        for rank, one in rendered.items():
            _write(output / f"rank-{rank}", one)
    except OSError as error:
        raise Stop(
            Exit.FAILED, f"{error.filename or output} cannot be written: {error.strerror or error}."
        ) from None


def _clear(folder: Path) -> None:
    """Removes what a render writes there, by its names, and the folder where nothing else is in it."""
    if folder.is_symlink() or not folder.is_dir():
        return
    for name in _WRITTEN:
        file = folder / name
        if file.is_file() or file.is_symlink():
            file.unlink()
    left = sorted(entry.name for entry in folder.iterdir())
    if left:
        say(f"{folder} holds files of your own, which stay: {', '.join(left[:8])}.")
    else:
        folder.rmdir()


def _write(folder: Path, one: Rendered) -> None:
    """The attempt's files, its environment, and the commands as a script that says where it runs."""
    if folder.is_symlink():
        raise Stop(
            Exit.FAILED, f"{folder} is a link, which is not followed; remove it, or name another folder."
        )
    folder.mkdir(parents=True, exist_ok=True)
    for file in one.files:
        (folder / file.path).write_text(file.content, encoding="utf-8")
    (folder / "environment").write_text(_environment(one), encoding="utf-8")
    (folder / "commands").write_text(_PREAMBLE + _commands(one), encoding="utf-8")


def _environment(one: Rendered) -> str:
    """Lines a shell can read: what is removed first, then what is set."""
    names = [f"unset {name}\n" for name in one.unset if not name.endswith("*")]
    beginnings = "|".join(name[:-1] for name in one.unset if name.endswith("*"))
    others = f"for name in $(env | grep -oE '^({beginnings})[^=]*'); do unset \"$name\"; done\n"
    return "".join(
        [*names, others, *(f"export {name}={shlex.quote(v)}\n" for name, v in one.environment.items())]
    )


def _commands(one: Rendered) -> str:
    steps = [argv for argv in (one.prepare_argv, one.train_argv, one.compare_argv) if argv is not None]
    return "".join(f"{shlex.join(argv)}\n" for argv in steps)


def _print(rank: int, one: Rendered) -> None:
    for file in one.files:
        write(f"# --- rank {rank}: {file.path}")
        write(file.content.rstrip("\n"))
    write(f"# --- rank {rank}: environment")
    write(_environment(one).rstrip("\n"))
    write(f"# --- rank {rank}: commands")
    write(_commands(one).rstrip("\n"))


def _explain(one: Rendered) -> None:
    for reason in one.reasons:
        say(f"{reason.file}: {reason.key} = {reason.value}: {reason.why}")


def _view(rank: int, one: Rendered) -> RenderedView:
    return RenderedView(
        rank=rank,
        files=tuple(RenderedFileView(path=f.path, content=f.content, sha256=f.sha256) for f in one.files),
        environment=one.environment,
        argv=one.train_argv,
    )
