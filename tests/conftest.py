"""How the whole suite runs: properties without stopwatches, one thread per tensor operation, no hub.

A shell that starts the suite in the background has it ignore Ctrl-C, and so would every process that a test starts;
the tests of stopping would wait for ever. So the suite hears it again, wherever it was started.
"""

import os
import signal

from hypothesis import HealthCheck, settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "treadle",
    deadline=None,
    max_examples=60,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("treadle")
