"""The store's schema over time. `Store.open` brings a database to HEAD; nobody runs Alembic by hand.

A new revision is a file in `versions/`; HEAD names the newest (a test holds it to the files, and the result
of all revisions to `tables.py`). Alembic itself is imported only when there is something to do.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, inspect, select
from sqlalchemy.sql import column, table

from coordinator.store.errors import StoreError

if TYPE_CHECKING:
    from alembic.config import Config

HEAD = "0002"

_FOLDER = Path(__file__).parent


def upgrade(c: Connection, name: str) -> None:
    """Bring the database to HEAD, in one transaction. Raises StoreError if a newer rankcall has written it."""
    with c.begin():
        found = revision(c)
        if found == HEAD:
            return
        if found is not None and found not in _known():
            raise StoreError(
                f"the store {name} was written by a newer rankcall (revision {found}, this one knows up to "
                f"{HEAD}); upgrade rankcall here, or point RANKCALL_STATE_DIR or RANKCALL_DATABASE_URL elsewhere"
            )
        from alembic import command

        command.upgrade(config(c), "head")


def downgrade(c: Connection, to: str) -> None:
    """Bring the database back to an older revision, "base" for an empty one."""
    from alembic import command

    with c.begin():
        command.downgrade(config(c), to)


def revision(c: Connection) -> str | None:
    """The revision a database is at; None for an empty one."""
    if not inspect(c).has_table("alembic_version"):
        return None
    return c.execute(select(column("version_num")).select_from(table("alembic_version"))).scalar()


def config(c: Connection) -> Config:
    """Alembic's configuration for one connection; it logs nothing and reads no file."""
    from alembic.config import Config

    made = Config()
    made.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    made.attributes["connection"] = c
    return made


def _known() -> frozenset[str]:
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    made = Config()
    made.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    return frozenset(script.revision for script in ScriptDirectory.from_config(made).walk_revisions())
