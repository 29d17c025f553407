"""The schema: revisions lead to exactly the tables, back to nothing, and carry what was stored along."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text

from coordinator.store import Store, StoreError, engine, migrations, queries, rows, streams
from coordinator.store.tables import Table


def connected(url: str) -> Connection:
    parsed = engine.parsed(url)
    engine.prepare_file(parsed)
    return engine.writing(parsed).connect()


def revisions() -> list[str]:
    """All revisions, oldest first."""
    folder = ScriptDirectory(str(Path(migrations.__file__).parent))
    return [script.revision for script in folder.walk_revisions()][::-1]


def differences(c: Connection) -> list[object]:
    context = MigrationContext.configure(c, opts={"compare_type": True, "target_metadata": Table.metadata})
    return list(compare_metadata(context, Table.metadata))


def test_head_names_the_newest_revision() -> None:
    assert revisions()[-1] == migrations.HEAD


def test_the_revisions_lead_to_exactly_the_tables_and_back_to_nothing(database_url: str) -> None:
    with connected(database_url) as c:
        for _ in range(2):
            migrations.upgrade(c, "x")
            with c.begin():
                assert differences(c) == []
                assert migrations.revision(c) == migrations.HEAD
            migrations.downgrade(c, "base")
            with c.begin():
                assert inspect(c).get_table_names() == ["alembic_version"]


def test_the_comparison_would_notice_a_column_that_no_revision_makes(database_url: str) -> None:
    with connected(database_url) as c:
        migrations.upgrade(c, "x")
        with c.begin():
            c.execute(text("ALTER TABLE job ADD COLUMN forgotten INTEGER"))
            c.execute(text("DROP INDEX ix_metric_job_id_id"))
            assert len(differences(c)) == 2


@pytest.mark.parametrize("revision", revisions())
def test_a_store_of_any_older_release_is_upgraded_with_what_it_holds(
    database_url: str, revision: str
) -> None:
    from alembic import command

    with connected(database_url) as c:
        with c.begin():
            command.upgrade(migrations.config(c), revision)
        with c.begin():
            # Statements, not queries: they are what that release wrote, whatever the tables are now.
            c.execute(
                text(
                    "INSERT INTO job (id, kind, name, state, stage, verdict, nodes, created_at, attempts, "
                    "attempts_allowed, cancel_requested, retry_requested, actor, submission) VALUES ('old', "
                    "'train', 'from before', 'running', 'train', '', 2, 5.5, 1, 1, false, false, '', '{\"a\": 1}')"
                )
            )
            c.execute(
                text(
                    "INSERT INTO stream (attempt_id, replica_id, name, size_bytes) VALUES ('old-1', 'r', 's', 3)"
                )
            )
            c.execute(
                text("""INSERT INTO chunk (stream_id, "offset", data) SELECT id, 0, 'abc' FROM stream""")
            )
    store = Store.open(database_url)
    kept = store.read_now(lambda c: queries.job(c, "old"))
    assert kept is not None
    assert (kept.name, kept.submission, kept.cancel_requested) == ("from before", {"a": 1}, False)
    assert store.write_now(lambda c: streams.append(c, "old-1", "r", "s", 3, b"def")) == (6, True)
    assert store.read_now(migrations.revision) == migrations.HEAD
    store.close()


def test_a_store_that_a_newer_rankcall_wrote_is_left_alone(database_url: str) -> None:
    Store.open(database_url).close()
    with connected(database_url) as c, c.begin():
        c.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(StoreError, match=r"newer rankcall \(revision 9999.*upgrade rankcall here"):
        Store.open(database_url)
    with connected(database_url) as c, c.begin():
        assert migrations.revision(c) == "9999"


def test_opening_at_once_migrates_once_and_opening_again_keeps_everything(database_url: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        stores = list(pool.map(Store.open, [database_url] * 4))
    new = rows.Job(id="a", name="n", nodes=1, created_at=1.0, submission={})
    stores[0].write_now(lambda c: queries.insert_job(c, new))
    assert [len(store.read_now(queries.open_jobs)) for store in stores] == [1] * 4
    for store in stores:
        store.close()
    again = Store.open(database_url)
    assert len(again.read_now(queries.open_jobs)) == 1
    again.close()


def test_a_migration_that_is_interrupted_leaves_nothing_half_done(database_url: str) -> None:
    with connected(database_url) as c:
        with pytest.raises(ZeroDivisionError), c.begin():
            from alembic import command

            command.upgrade(migrations.config(c), "head")
            raise ZeroDivisionError
        with c.begin():
            assert inspect(c).get_table_names() == []
