"""Interrupting the command line, as a process: 130, saved the first time, at once the second."""

import os
import signal
import subprocess
import sys
import time

import pytest

CODE = (
    "import signal, sys\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "from treadle.cli.main import main\nsys.exit(main())\n"
)


class Child:
    """`treadle` in a process of its own, whose lines are read one by one."""

    def __init__(self, *argv):
        self.process = subprocess.Popen(
            [sys.executable, "-c", CODE, *argv], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        self.lines = []

    def until(self, word):
        """Read lines until one holds the word."""
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            if word in line:
                return
        raise AssertionError(f"{word!r} was not said: {self.lines} {self.process.stderr.read()}")

    def interrupt(self, number=signal.SIGINT):
        """Send a signal to the process."""
        self.process.send_signal(number)

    def end(self, timeout=60):
        """Wait for the end: exit code, lines, what standard error said."""
        out, err = self.process.communicate(timeout=timeout)
        return self.process.returncode, self.lines + out.splitlines(), err.splitlines()


@pytest.fixture
def child():
    made = []

    def start(*argv):
        made.append(Child(*argv))
        return made[-1]

    yield start
    for one in made:
        one.process.kill()
        one.process.stderr.close()
        one.process.stdout.close()
        one.process.wait(60)


def test_ctrl_c_finishes_saves_and_ends_with_130(child, words_file, tmp_path):
    run = child("train", f"{words_file}:endless_coldstart", "--view", "lines")
    run.until("cold start 2/")
    run.interrupt()
    code, lines, err = run.end()
    assert (code, err) == (130, [])
    assert "stopping: asked to stop; once more ends at once" in lines
    assert lines[-1].startswith(f"run folder: {tmp_path / 'runs' / 'words-'}")
    assert len(list(tmp_path.glob("runs/*/checkpoints/version-*/model/model.safetensors"))) == 1
    assert len(list(tmp_path.glob("runs/*/report.md"))) == 1


def test_a_second_ctrl_c_ends_at_once_though_the_update_hangs(child, words_file):
    run = child("train", f"{words_file}:endless_update", "--view", "lines")
    run.until("in the update")
    run.interrupt()
    run.until("stopping: asked to stop")
    began = time.monotonic()
    run.interrupt()
    code, _, err = run.end()
    assert (code, err) == (130, ["treadle: interrupted"])
    assert time.monotonic() - began < 20


def test_sigterm_stops_an_evaluation_with_130(child, words_file, tmp_path):
    run = child("train", f"{words_file}:hanging_evaluation", "--view", "lines")
    run.until("evaluating coldstart")
    run.interrupt(signal.SIGTERM)
    code, lines, err = run.end()
    assert (code, err) == (130, [])
    assert len(list(tmp_path.glob("runs/*/checkpoints/version-*"))) == 1
    assert [line for line in lines if line.startswith("coldstart")] == []


def test_a_reader_that_goes_away_does_not_stop_the_run(child, words_file, tmp_path):
    run = child("train", words_file, "--view", "lines")
    run.until("evaluating untouched")
    run.process.stdout.close()
    err = run.process.stderr.read()
    assert run.process.wait(60) == 0
    assert "Traceback" not in err
    (report,) = tmp_path.glob("runs/*/report.md")
    assert "Ended: done" in report.read_text()
