"""A short soak; soak.py is the long one."""

from soak import Soak


def test_sixty_edits_under_load():
    soak = Soak(seconds=60)
    try:
        soak.run(60, warm=20)
    finally:
        soak.close()
    assert soak.n_edits >= 30
