"""A short soak; soak.py is the long one."""

from soak import Soak


def test_forty_edits_under_load():
    soak = Soak(clients=4)
    try:
        soak.run(40, warm=15)
    finally:
        soak.close()
