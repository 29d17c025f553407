"""The HTTP API: thin routers over the store, the roster, the intake and `submissions.py`."""
