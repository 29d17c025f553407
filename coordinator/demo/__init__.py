"""The demo: a tiny model and its data made on the spot (`model.py`, `data.py`), and replicas on this machine (`run.py`)."""
