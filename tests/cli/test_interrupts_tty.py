"""Interrupting the live view twice leaves the terminal as it was."""

import os
import pty
import signal
import subprocess
import sys

CODE = (
    "import signal, sys\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "from treadle.cli.main import main\nsys.exit(main())\n"
)


def test_ending_at_once_shows_the_cursor_again(words_file):
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", CODE, "train", f"{words_file}:endless_update"], stdout=theirs,
        stderr=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm", "COLUMNS": "120"},
    )
    os.close(theirs)
    screen, sent = "", 0
    try:
        while True:
            try:
                screen += os.read(ours, 65536).decode("utf-8", "replace")
            except OSError:  # the other side was closed: the process ended
                break
            wanted = ("in the update", "stopping: asked to stop")
            if sent < 2 and wanted[sent] in screen:
                sent += 1
                process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr.read() == b"treadle: interrupted\n"
    finally:
        process.kill()
        process.stderr.close()
        process.wait(60)
        os.close(ours)
    assert "\x1b[?25l" in screen
    assert screen.rindex("\x1b[?25h") > screen.rindex("\x1b[?25l")
