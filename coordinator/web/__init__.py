"""The status page: templates and static files, served by `api/pages.py`."""
