"""The parts of the API that need no server: settings, cursors, ranges, bundles, wake-ups, and what users are shown."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st

from coordinator.api import pages, problems
from coordinator.api.artifacts import _range
from coordinator.api.edge import MIB, REPORT_BYTES, SUBMISSION_BYTES, body_limit
from coordinator.api.sse import Cursor, encode
from coordinator.broadcast import Broadcast
from coordinator.core.problem import ProblemError
from coordinator.core.protocol import BundleFile, Finding, ProgressRecord, bundle_sha256
from coordinator.core.views import ReplicaView
from coordinator.relay import Source
from coordinator.settings import Settings, SettingsError, is_loopback
from coordinator.submissions import misplaced_files
from coordinator.veils import Veils
from coordinator.views_of import progress_view, replica_page

# --- settings


def environment(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    for name in (
        "TOKEN",
        "VIEWER_TOKEN",
        "NODES",
        "HOST",
        "PORT",
        "STATE_DIR",
        "DATABASE_URL",
        "ALLOWED_HOSTS",
    ):
        monkeypatch.delenv(f"RANKCALL_{name}", raising=False)
    for name, value in values.items():
        monkeypatch.setenv(f"RANKCALL_{name}", value)


def test_without_a_token_it_binds_this_machine_only(monkeypatch: pytest.MonkeyPatch) -> None:
    environment(monkeypatch)
    settings = Settings.from_environment()
    assert settings.bind_host == "127.0.0.1" and settings.open_on_loopback
    environment(monkeypatch, TOKEN="sixteen-letters!")
    assert Settings.from_environment().bind_host == "::"


def test_an_empty_variable_is_an_unset_one(monkeypatch: pytest.MonkeyPatch) -> None:
    environment(monkeypatch, TOKEN="", NODES="", HOST="")
    assert Settings.from_environment().open_on_loopback


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"HOST": "0.0.0.0"}, "RANKCALL_HOST=0.0.0.0"),
        ({"HOST": "::"}, "RANKCALL_HOST=::"),
        ({"HOST": "10.0.0.7"}, "RANKCALL_TOKEN"),
        ({"TOKEN": "fifteen-letters"}, "RANKCALL_TOKEN is shorter"),
        (
            {"TOKEN": "a-long-enough-token", "VIEWER_TOKEN": "fifteen-letters"},
            "RANKCALL_VIEWER_TOKEN is shorter",
        ),
        ({"VIEWER_TOKEN": "a-viewer-token-long-enough"}, "RANKCALL_VIEWER_TOKEN is set"),
        (
            {"TOKEN": "a-long-enough-token", "VIEWER_TOKEN": "a-long-enough-token"},
            "RANKCALL_VIEWER_TOKEN equals",
        ),
        ({"NODES": "two"}, "RANKCALL_NODES"),
        ({"NODES": "0"}, "RANKCALL_NODES"),
        ({"PORT": "70000"}, "RANKCALL_PORT"),
    ],
)
def test_a_setting_that_cannot_be_is_named_without_its_secret(
    values: dict[str, str], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment(monkeypatch, **values)
    with pytest.raises(SettingsError) as refused:
        Settings.from_environment()
    said = str(refused.value)
    assert named in said
    assert not any(secret in said for name, secret in values.items() if "TOKEN" in name)


def test_the_store_lies_in_the_state_folder_unless_another_is_named(tmp_path: Path) -> None:
    assert Settings(state_dir=tmp_path).store_url == f"sqlite:///{tmp_path}/coordinator/rankcall.db"
    assert Settings(database_url="postgresql+psycopg://x/y").store_url == "postgresql+psycopg://x/y"


@pytest.mark.parametrize(
    ("host", "yes"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("[::1]", True),
        ("::ffff:127.0.0.1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.example", False),
        ("127.0.0.1.example", False),
        ("", False),
    ],
)
def test_loopback_is_what_never_leaves_the_machine(host: str, yes: bool) -> None:
    assert is_loopback(host) is yes


# --- streams


@pytest.mark.parametrize(
    "override", ["a=!!bool x", "a=!!int ''", "datasets.²=x", f"{'a.' * 5000}a=1", "a", "=", "a=["]
)
def test_an_override_that_cannot_be_read_is_no_fault_of_the_veil(override: str) -> None:
    veil = Veils({}, ()).over(
        {"config": "a: !!int ''", "overrides": [override, "hub_token=!!bool hf-of-somebody"]}
    )
    assert "somebody" not in veil.mask_text("override 'hub_token=!!bool hf-of-somebody'")


@given(st.integers(0, 1 << 60), st.integers(0, 1 << 60))
def test_a_cursor_is_read_as_it_was_written(finding: int, metric: int) -> None:
    assert Cursor.parse(str(Cursor(finding, metric))) == Cursor(finding, metric)


@given(st.text(max_size=200))
def test_an_event_is_one_event_whatever_it_says(message: str) -> None:
    event = encode("finding", Finding(code="X", severity="note", message=message), Cursor(1, 2))
    assert event.startswith(b"id: 1.2\nevent: finding\ndata: {") and event.endswith(b"}\n\n")
    assert event.count(b"\n") == 4 and b"\r" not in event


def test_any_number_of_publications_are_one_wake_up() -> None:
    async def run() -> None:
        broadcast = Broadcast()
        with broadcast.subscribe(["a", "b"]) as reader:
            assert await reader.wait(0) == frozenset()
            for _ in range(100):
                broadcast.publish("a")
            broadcast.publish("other")
            assert await reader.wait(1) == {"a"}
            waiting = asyncio.create_task(reader.wait(5))
            await asyncio.sleep(0)
            broadcast.publish("b")
            assert await waiting == {"b"}
            waiting = asyncio.create_task(reader.wait(5))
            await asyncio.sleep(0)
            broadcast.close()
            assert await waiting == frozenset() and reader.closed
        assert broadcast.readers == 0
        with broadcast.subscribe(["a"]) as late:
            assert late.closed

    asyncio.run(run())


# --- downloads

SOURCE = Source("a", "j", "r", "outputs/x", 100, "00" * 32)


@given(st.text(alphabet="bytes=0123456789-, ", max_size=20))
def test_a_range_is_a_part_of_the_file_or_all_of_it_or_refused(asked: str) -> None:
    try:
        start, stop, partial = _range({"range": asked}, SOURCE)
    except ProblemError as refusal:
        assert refusal.problem.status == 416
        return
    assert 0 <= start < stop <= 100
    assert partial or (start, stop) == (0, 100)


# --- submissions


@pytest.mark.parametrize(
    ("method", "path", "limit"),
    [
        ("POST", "/api/v1/jobs", SUBMISSION_BYTES),
        ("POST", "/api/v1/checks", SUBMISSION_BYTES),
        ("POST", "/api/v1/replicas/r-1/report", REPORT_BYTES),
        ("PUT", "/api/v1/replicas/r-1/uploads/u", None),
        ("POST", "/api/v1/session", MIB),
        ("POST", "/api/v1/replicas", REPORT_BYTES),  # it may bring what a lost store had
    ],
)
def test_each_route_has_its_limit(method: str, path: str, limit: int | None) -> None:
    assert body_limit(method, path) == limit


PATHS = st.text(alphabet="ab./\\\0é ", min_size=1, max_size=12)


@given(st.lists(PATHS, max_size=4))
def test_no_bundle_that_is_let_in_leaves_its_folder_or_overwrites_itself(paths: list[str]) -> None:
    if misplaced_files(BundleFile(path=path, data=b"") for path in paths):
        return
    folder = Path("/somewhere/deep/work")
    placed = [Path(*folder.parts, *Path(path).parts) for path in paths]
    assert len(set(placed)) == len(placed)
    for path in placed:
        assert path.is_relative_to(folder) and ".." not in path.parts and path != folder
        assert not any(other != path and other.is_relative_to(path) for other in placed)


@given(st.dictionaries(st.text(min_size=1, max_size=5), st.binary(max_size=5), max_size=4))
def test_a_bundle_is_known_by_its_contents_not_by_their_order(files: dict[str, bytes]) -> None:
    bundle = [BundleFile(path=path, data=data) for path, data in files.items()]
    assert bundle_sha256(bundle) == bundle_sha256(bundle[::-1])
    for file in bundle:
        changed = [f if f is not file else BundleFile(path=f.path, data=f.data + b"!") for f in bundle]
        assert bundle_sha256(changed) != bundle_sha256(bundle)


# --- what users are shown


def replica(number: int, *, alive: bool = True) -> ReplicaView:
    return ReplicaView(
        id=f"r-{number}",
        hostname="",
        incarnation=1,
        alive=alive,
        last_seen_s=0,
        registered_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


@pytest.mark.parametrize(
    ("here", "gone", "expected", "message"),
    [
        (0, 0, 2, "0 of 2 replicas registered, waiting for 2 more"),
        (1, 0, 2, "1 of 2 replicas registered, waiting for one more"),
        (2, 0, 2, "2 of 2 replicas registered"),
        (3, 0, 2, "3 of 2 replicas registered, 1 to spare"),
        (1, 1, 2, "1 of 2 replicas registered, waiting for one more; 1 not heard of any more"),
        (1, 0, 1, "1 of 1 replica registered"),
        (1, 0, None, "1 replica registered"),
        (2, 0, None, "2 replicas registered"),
    ],
)
def test_attendance_is_one_sentence(here: int, gone: int, expected: int | None, message: str) -> None:
    replicas = tuple(replica(n, alive=n < here) for n in range(here + gone))
    assert replica_page(replicas, expected).message == message


def record(kind: str, at: float, rank: int = 0, **figures: object) -> ProgressRecord:
    return ProgressRecord.model_validate({"type": kind, "at": at, "rank": rank, **figures})


def test_progress_is_the_newest_figure_of_the_lowest_rank_that_has_it() -> None:
    view = progress_view(
        [
            record("start", 1, total_steps=100, world_size=2),
            record("log", 9, step=40, loss=1.5, step_s=0.5),
            record("eval", 8, step=30, eval_loss=1.2),
            record("log", 10, rank=1, step=41, loss=9.9, tokens_per_s=123.0),
        ]
    )
    assert view is not None
    assert (view.step, view.total_steps, view.loss, view.eval_loss) == (40, 100, 1.5, 1.2)
    assert view.tokens_per_s == 123.0
    assert view.eta_s == 30.0
    assert view.updated_at == datetime.fromtimestamp(10, UTC)


def test_there_is_no_progress_before_the_first_record() -> None:
    assert progress_view([]) is None


# --- addresses without a page


@pytest.mark.parametrize(
    ("path", "accept", "page"),
    [
        ("/foo", "text/html,*/*", "./"),
        ("/a/b/c", "text/html", "../../"),
        ("/foo", "*/*", None),
        ("/api/v1/foo", "text/html", None),
    ],
)
def test_a_browser_gets_a_page_with_a_way_back_and_programs_a_problem(
    path: str, accept: str, page: str | None
) -> None:
    app = FastAPI()
    app.include_router(pages.router)
    problems.install(app)

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app=app), base_url="http://coordinator"
        ) as client:
            return await client.get(path, headers={"Accept": accept})

    answer = asyncio.run(ask())
    assert answer.status_code == 404
    if page is None:
        assert answer.json()["code"] == "SYS102"
    else:
        assert f'<a class="brand" href="{page}">' in answer.text and "%UP%" not in answer.text
