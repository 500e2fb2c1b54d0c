"""A module whose import another thread may be within."""

import time

time.sleep(0.3)
DONE = True
KIND = True
