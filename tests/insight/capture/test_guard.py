"""What a script would write stays in the process's own folder; what reaches outside of it is refused."""

import os
import subprocess
import sys
import textwrap

import pytest

from roller.insight.capture.idle_timeout import IdleTimeout

pytestmark = pytest.mark.slow  # each starts a process: neither guard nor fence can be undone

HEAD = """
import os, sys
from roller.insight.capture.operating_system_sandbox import disconnect_from_network, limit_writes_to_folder
from roller.insight.capture.python_sandbox import PythonSandbox
folder, notes = os.environ["TMPDIR"], []
"""


@pytest.fixture
def run(tmp_path):
    """Return a function that runs code within a folder, beside one it may write into; what it prints is returned."""
    (tmp_path / "own").mkdir()
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "old.txt").write_text("old")

    def ran(code):
        done = subprocess.run(
            [sys.executable, "-c", HEAD + textwrap.dedent(code)], cwd=tmp_path / "project", capture_output=True,
            text=True, env={"PYTHONPATH": ":".join(p for p in sys.path if p), "TMPDIR": str(tmp_path / "own"),
                            "PYTHONDONTWRITEBYTECODE": "1", "PATH": "/usr/bin:/bin"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert [p.name for p in (tmp_path / "project").iterdir()] == ["old.txt"]
        assert (tmp_path / "project" / "old.txt").read_text() == "old"
        return done.stdout.splitlines()

    return ran


def test_files_and_folders_it_makes_are_found_again_and_are_not_there(run):
    assert run("""
        import pathlib
        PythonSandbox(folder, notes.append).install()
        os.makedirs("runs/last", exist_ok=True)
        os.makedirs("runs/last", exist_ok=True)
        pathlib.Path("runs/last/log.txt").write_text("one")
        with open("runs/last/log.txt", "a") as file: file.write(" two")
        with open("old.txt", "a") as file: file.write("er")
        print(pathlib.Path("runs/last/log.txt").read_text(), os.path.isdir("runs/last"), os.path.exists("runs/other"))
        print(open("old.txt").read())
        os.chmod("old.txt", 0o600)
        open("runs/last/a", "w").close()
        os.replace("runs/last/a", "runs/last/b")
        os.replace("runs/last/b", "c")
        os.remove("runs/last/log.txt")
        print(os.listdir("runs/last"), os.path.exists("c"), list(pathlib.Path("runs").iterdir())[0].name)
        try: open("old.txt", "x")
        except FileExistsError: print("is there")
        print(notes)
    """) == ["one two True False", "older", "[] True last", "is there", "['open old.txt for writing']"]


def test_what_changes_files_reaches_others_or_starts_programs_is_refused(run):
    said = run("""
        import multiprocessing, socket, subprocess
        PythonSandbox(folder, notes.append).install()
        for attempt in (
            lambda: os.remove("old.txt"), lambda: os.rename("old.txt", "new.txt"),
            lambda: os.symlink("old.txt", "link"), lambda: os.open("new.txt", os.O_CREAT | os.O_WRONLY),
            lambda: os.truncate("old.txt", 0), lambda: socket.create_connection(("127.0.0.1", 9)),
            lambda: socket.getaddrinfo("example.com", 80), lambda: subprocess.run(["true"]),
            lambda: os.kill(os.getppid(), 0), os.fork,
            multiprocessing.get_context("spawn").Process(target=print).start,
        ):
            try: attempt(); print("not refused")
            except PermissionError as error: print(str(error).split(":")[0])
        print(os.system("touch new.txt") != 0, notes[-1])
    """)
    assert said.pop() == "True os.system touch new.txt"
    assert said == [
        "os.remove old.txt", "os.rename old.txt", "os.symlink link", "open new.txt for writing",
        "os.truncate old.txt", "socket.getaddrinfo 127.0.0.1", "socket.getaddrinfo example.com",
        "subprocess.Popen true", f"os.kill {os.getpid()}", "os.fork ", "a process of multiprocessing",
    ]  # fmt: skip


def test_the_kernel_refuses_what_python_does_not_see(run):
    said = run("""
        import socket, sqlite3
        if not limit_writes_to_folder(folder):
            print("no fence of files here")
            sys.exit()
        def connect(path): sqlite3.connect(path).execute("create table t (a)")
        connect(folder + "/own.db")
        for attempt in (lambda: open("new.txt", "w"), lambda: connect("new.db"), lambda: os.remove("old.txt")):
            try: attempt(); print("not refused")
            except Exception as error: print(type(error).__name__)
        print(os.system("touch other.txt 2> /dev/null") != 0)
        open("/dev/null", "w").write("x")
    """)
    if said == ["no fence of files here"]:
        pytest.skip("the kernel has no Landlock of version 3")
    assert said == ["PermissionError", "OperationalError", "PermissionError", "True"]


def test_the_kernel_refuses_the_network(run):
    said = run("""
        import socket
        listening = socket.create_server(("127.0.0.1", 0))
        if not disconnect_from_network():
            print("no fence of the network here")
            sys.exit()
        try: socket.create_connection(listening.getsockname(), 2); print("not refused")
        except OSError as error: print("refused")
    """)
    if said == ["no fence of the network here"]:
        pytest.skip("no namespace of the network can be made here")
    assert said == ["refused"]


def test_the_kernel_refuses_the_network_to_a_user_without_privileges(run):
    said = run("""
        import socket
        if os.getuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        user = os.getuid()
        if not disconnect_from_network():
            print("no fence of the network here")
            sys.exit()
        try: socket.socket().connect(("127.0.0.1", 9)); print("not refused")
        except OSError as error: print(error.strerror)
        print(os.getuid() == user)
    """)
    if said == ["no fence of the network here"]:
        pytest.skip("no namespace of the network can be made here")
    assert said == ["Network is unreachable", "True"]


def test_patience_is_over_without_a_sign(run):
    said = run("""
        import threading, time
        from roller.insight.capture.idle_timeout import IdleTimeout
        over = threading.Event()
        waiting = IdleTimeout(0.5, lambda frame: (print(frame.f_code.co_name), over.set()))
        waiting.start()
        begun = time.monotonic()
        for _ in range(8):
            time.sleep(0.1); waiting.sign()
        print(over.is_set())
        def idle(): over.wait(10)
        idle()
        print(0.5 < time.monotonic() - begun - 0.8 < 5)
    """)
    assert said[0] == "False"
    assert said[-1] == "True"
    assert IdleTimeout.__doc__
