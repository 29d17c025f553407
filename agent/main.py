"""The agent's loop: observe, report, converge. Level-triggered, so any of it may be cut off at any moment.

One loop follows the desired state with a held read, one makes this replica be what is desired
(`convergence.py`), one reports what is: at once when there is something new, else every two seconds. Made by
`start.py`. SIGTERM ends the training of this replica; a crash ends nothing, and the next agent takes over
what runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from dataclasses import replace
from importlib import metadata
from typing import Any

import structlog

from agent import addresses, discovery, facts, files, gpus, identity, launcher, room
from agent.around import Surroundings
from agent.client import Backoff, Coordinator, Murmur, NotRegistered
from agent.convergence import Convergence
from agent.identity import Identity
from agent.occasion import Occasion, Rhythm
from agent.probes import echo
from agent.probes.warm import WarmProbe
from agent.settings import AgentSettings, platform_ordinal
from agent.streams import REPORT_BYTES, Mirror
from agent.telemetry import Meter
from agent.uploads import Uploads
from agent.vigil import Vigil
from coordinator.core.clock import monotonic_s
from coordinator.core.http import ProblemAnswer, Unreachable
from coordinator.core.protocol import (
    AttemptPlan,
    Facts,
    Registered,
    Registration,
    Report,
    Telemetry,
)
from coordinator.core.redact import Redactor, secrets_of

log = structlog.get_logger("agent")


class Agent:
    """The agent of one replica. `run` is its life."""

    def __init__(
        self,
        settings: AgentSettings,
        who: Identity,
        *,
        rhythm: Rhythm | None = None,
    ) -> None:
        self._settings = settings
        self._layout = settings.layout
        self._who = who
        self._rhythm = rhythm or Rhythm()
        self._environment = dict(os.environ)
        self._redactor = Redactor(secrets_of(self._environment))
        self._coordinator = Coordinator(lambda: discovery.coordinator_urls(settings), settings.join_token)
        self._mirror = Mirror(lambda: self._redactor)
        self._occasion = Occasion(self._rhythm, self._mirror)
        self._meter = Meter(settings.state_dir, self._environment)
        self._warm = WarmProbe(settings.python)
        self._uploads = Uploads(self._layout, settings.data_roots, self._coordinator)
        around = Surroundings(
            layout=self._layout,
            python=settings.python,
            replica_id=lambda: self._who.replica_id,
            coordinator=self._coordinator,
            warm=self._warm,
            redactor=lambda: self._redactor,
            news=self._occasion.tell,
        )
        self._convergence = Convergence(around, self._mirror, self._learn_secrets)
        self._registrations = self._reports = 0
        self._leaving = False
        self._facts: Facts | None = None
        self._facts_told: Facts | None = None
        self._echo: echo.EchoServer | None = None
        self._reading: asyncio.Future[Telemetry] | None = None
        self._unread = Murmur()
        self._secrets_known_of = ""

    # --- life

    async def run(self, asked_to_end: asyncio.Event, asked_to_leave: asyncio.Event) -> None:
        """Until `asked_to_end`: then the training of this replica is ended and nothing is left behind. Or until
        `asked_to_leave`: then what runs goes on without an agent.

        Raises:
            Exception: what a loop could not cope with; the training goes on, and the next agent adopts it.
        """
        self._echo = await self._serve_echo(0)
        self._learn_secrets_again()
        self._convergence.adopt()
        loops = [
            asyncio.create_task(loop, name=name)
            for name, loop in {
                "register": self._coordinator.keep_registered(self._introduce, self._outdated, self._welcome),
                "follow": self._follow(),
                "converge": self._convergence.run(),
                "report": self._report(),
                "room": self._keep_room(),
                "vigil": self._keep_vigil(),
                "facts": self._learn_facts(),
            }.items()
        ]
        asked: list[asyncio.Task[Any]] = [
            asyncio.create_task(event.wait()) for event in (asked_to_end, asked_to_leave)
        ]
        try:
            await asyncio.wait([*asked, *loops[:-1]], return_when=asyncio.FIRST_COMPLETED)
            for loop in loops:
                if loop.done() and not loop.cancelled() and (error := loop.exception()) is not None:
                    raise error
            if asked_to_end.is_set():
                await self._end_everything(loops)
        finally:
            for loop in (*asked, *loops):
                loop.cancel()
            await asyncio.gather(*asked, *loops, return_exceptions=True)
            await self._close()

    async def _end_everything(self, loops: list[asyncio.Task[None]]) -> None:
        """End the training, and deliver its last reports, that it is free, and the rest of its streams."""
        for loop in loops:
            if loop.get_name() in {"follow", "converge"}:
                loop.cancel()
        await self._convergence.shut_down()
        if not self._coordinator.registered:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._rhythm.last_words_s):
                await self._occasion.delivered()
                self._convergence.forget()
                self._leaving = True
                await self._occasion.delivered()
                while self._mirror.due(monotonic_s()):
                    await self._occasion.delivered()

    async def _close(self) -> None:
        await self._convergence.aclose()
        await self._uploads.aclose()
        await self._warm.close()
        if self._echo is not None:
            await self._echo.aclose()
        await self._coordinator.aclose()

    # --- registration

    async def _serve_echo(self, port: int) -> echo.EchoServer:
        """At the address that is offered; everywhere, where that is one that is translated on its way here."""
        if self._settings.address:
            with contextlib.suppress(OSError):
                return await echo.serve(self._who.replica_id, self._settings.address, port)
        return await echo.serve(self._who.replica_id, None, port)

    async def _introduce(self) -> Registration:
        """Who this replica is, with the addresses it has now."""
        settings = self._settings
        offered = await asyncio.to_thread(addresses.offered, settings.address, self._coordinator.url)
        hostname = socket.gethostname()
        ordinal = settings.ordinal
        return Registration(
            replica_id=self._who.replica_id,
            fingerprint=self._who.fingerprint,
            incarnation=self._who.incarnation,
            version=_version(),
            hostname=hostname[:255],
            addresses=offered[:64],
            ordinal=platform_ordinal(self._environment, hostname) if ordinal is None else ordinal,
            beside_coordinator=settings.beside_coordinator,
            gpu_count=await asyncio.to_thread(gpus.count, self._environment),
            echo_port=self._echo.port if self._echo else 0,
            data_roots=settings.data_roots,
            held=self._convergence.held(),
        )

    def _outdated(self, seen: int) -> None:
        """The coordinator has heard a later incarnation of this replica: its state folder went back in time."""
        self._become(replace(self._who, incarnation=max(seen, self._who.incarnation) + 1))

    def _become(self, who: Identity) -> None:
        """Be this from now on, and after a restart, if the disk takes it."""
        self._who = who
        try:
            identity.save(self._layout, who)
        except OSError as error:
            log.warning("who this replica is cannot be written down", why=error.strerror or str(error))

    async def _welcome(self, registered: Registered) -> None:
        if registered.replica_id != self._who.replica_id:
            log.warning(
                "this replica is a clone and has a new id",
                was=self._who.replica_id,
                now=registered.replica_id,
            )
            self._become(replace(self._who, replica_id=registered.replica_id))
            assert self._echo is not None
            await self._echo.aclose()
            self._echo = await self._serve_echo(self._echo.port)
        self._registrations += 1
        self._facts_told = None
        self._mirror.ask_again()
        self._occasion.tell()

    # --- facts

    async def _learn_facts(self) -> None:
        """What can be known without torch at once, and what torch knows when it has been imported.

        Not while a training that was adopted runs: it needs the memory, and the coordinator has the facts from before.
        """
        await self._convergence.wait_free()
        try:
            await self._warm.start()
            plain = await asyncio.to_thread(
                facts.gather, self._settings.state_dir, self._settings.python, self._environment
            )
            self._facts = plain
            self._occasion.tell()
            said: dict[str, Any] = await self._warm.torch_facts()
            while not said.get(
                "torch_asked", True
            ):  # closed before it could answer, because a training began
                await self._convergence.wait_free()
                said = await self._warm.torch_facts()
            self._facts = facts.merge(plain, said)
            self._occasion.tell()
        except Exception as error:  # facts are wanted, but an agent without them is better than none
            log.exception("facts could not be learned")
            self._facts = (self._facts or Facts()).model_copy(update={"problems": (f"facts: {error}",)})
            self._occasion.tell()

    # --- the disk

    async def _keep_room(self) -> None:
        """Give room back on a disk that runs short. Never returns."""
        while True:
            await asyncio.sleep(self._rhythm.room_s)
            kept = self._convergence.holding() | {self._convergence.attempt_id or ""}
            try:
                await asyncio.to_thread(room.make_room, self._layout, kept)
            except OSError as error:
                log.warning("the disk cannot be looked at", why=error.strerror or str(error))

    async def _keep_vigil(self) -> None:
        """Watch what trains here while the coordinator is away. Never returns."""
        began_s = monotonic_s()
        vigil = Vigil(self._convergence, lambda: self._who.replica_id)
        while True:
            await asyncio.sleep(self._rhythm.report_s)
            alone_s = monotonic_s() - max(began_s, self._occasion.reported_s)
            if not vigil.needed(alone_s):
                continue
            try:
                if (reading := await self._take_reading()) is not None:
                    await vigil.look(reading, alone_s, monotonic_s())
            except Exception:  # the training is worth more than being watched
                log.exception("what runs here cannot be watched")

    # --- what should be

    async def _follow(self) -> None:
        """Know the desired state, always."""
        version, backoff, murmur = "", Backoff(), Murmur()
        while True:
            await self._coordinator.wait_registered()
            try:
                desired = await self._coordinator.desired(version)
            except NotRegistered:
                continue
            except (Unreachable, ProblemAnswer) as error:
                murmur.say("the coordinator does not answer; what runs here goes on", why=str(error))
                await self._coordinator.wait_and_relocate(backoff, error)
                continue
            backoff.reset()
            murmur.over("the coordinator answers again", url=self._coordinator.url)
            if desired is None:
                continue
            if desired.version == version:  # told at once what is known already: never ask in a busy circle
                await asyncio.sleep(1.0)
            version = desired.version
            self._uploads.want(desired.uploads)
            self._convergence.want(desired)

    def _learn_secrets(self, plan: AttemptPlan) -> None:
        if plan.files and plan.attempt_id != self._secrets_known_of:
            self._secrets_known_of = plan.attempt_id
            found = [
                secret for file in plan.files for secret in files.secrets_in_file(file.path, file.content)
            ]
            self._redactor = self._redactor.with_secrets((*secrets_of(plan.environment), *found))

    def _learn_secrets_again(self) -> None:
        """Those of attempts that an agent before this one left: their streams go on before their plan comes."""
        for _, folder in launcher.attempt_folders(self._layout):
            if not folder.mirrored.exists():
                self._redactor = self._redactor.with_secrets(files.secrets_of_attempt(folder))

    # --- what is

    async def _report(self) -> None:
        """Say what is: at once when something is new, else in the usual rhythm."""
        backoff, murmur = Backoff(), Murmur()
        telemetry_s = float("-inf")
        full = False
        while True:
            await self._coordinator.wait_registered()
            await self._occasion.due(full=full)
            self._occasion.taken()
            now_s = monotonic_s()
            telemetry = None
            if now_s - telemetry_s >= self._rhythm.report_s * 0.9:
                telemetry, telemetry_s = await self._take_reading(), now_s
            spoken, registrations = self._occasion.spoken, self._registrations
            report = self._compose(telemetry, now_s)
            try:
                reply = await self._coordinator.report(report)
            except NotRegistered:
                continue
            except (Unreachable, ProblemAnswer) as error:
                murmur.say(
                    "reports do not arrive; they are kept", why=str(error), bytes=self._mirror.backlog_bytes()
                )
                self._occasion.tell()
                await self._coordinator.wait_and_relocate(backoff, error)
                continue
            backoff.reset()
            murmur.over("reports arrive again")
            if (
                registrations != self._registrations
            ):  # what an earlier coordinator knows says nothing about this one
                continue
            self._occasion.arrived(spoken, now_s)
            self._facts_told = report.facts or self._facts_told
            self._mirror.acknowledge(report.appends, reply.acknowledged, now_s)
            full = sum(len(append.data) for append in report.appends) >= REPORT_BYTES // 2

    async def _take_reading(self) -> Telemetry | None:
        """A reading, unless the GPU's driver hangs or fails; then reports go out without."""
        if self._reading is not None and not self._reading.done():
            return None
        roots, streams = self._convergence.shims(), self._convergence.streams()
        reading = asyncio.ensure_future(asyncio.to_thread(self._meter.read, roots, streams))
        self._reading = reading  # which another loop may replace as soon as it is done
        done, _ = await asyncio.wait([reading], timeout=self._rhythm.reading_s)
        if not done:
            reading.add_done_callback(_seen)
            return None
        if (error := reading.exception()) is not None:  # what the training needs most are reports of it
            self._unread.say(
                "the load of this replica cannot be read", why=f"{type(error).__name__}: {error}"
            )
            return None
        self._unread.over("the load of this replica can be read again")
        return reading.result()

    def _compose(self, telemetry: Telemetry | None, now_s: float) -> Report:
        self._reports += 1
        return Report(
            incarnation=self._who.incarnation,
            number=self._reports,
            holding=tuple(sorted(self._convergence.holding())),
            attempt_id=self._convergence.attempt_id,
            tasks=self._convergence.reports,
            appends=self._mirror.appends(now_s),
            facts=self._facts if self._facts is not self._facts_told else None,
            telemetry=telemetry,
            leaving=self._leaving,
        )


def _seen(reading: asyncio.Future[Telemetry]) -> None:
    """Nobody waits for it any more; its error must only not be reported as unseen."""
    _ = reading.cancelled() or reading.exception()


def _version() -> str:
    try:
        return metadata.version("rankcall")
    except metadata.PackageNotFoundError:
        return ""
