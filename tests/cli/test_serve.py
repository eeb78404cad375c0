"""``nngk serve`` as a person or a supervisor runs it: a real process, its words, its signals and its mistakes."""

import json
import os
import signal
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from nngk import Model
from nngk.cli import cli
from nngk.cli.serve import read_token
from nngk.errors import InputError
from nngk.files import locked
from serving import TOKEN, Server, classify, teach, write_model
from shapes import command, environment, nngk


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("serve"))


def without_token():
    return {name: value for name, value in environment().items() if name != "NNGK_TOKEN"}


@pytest.mark.thorough
def test_it_starts_teaches_and_drains(folder):
    words = command("serve", folder, "--port", 0, "--teach", "--device", "cpu")
    process = subprocess.Popen(words, env=without_token(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        address, token = process.stdout.readline().split(" at ")[1].strip().split("#token=")
        assert address.startswith("http://127.0.0.1:") and len(token) >= 24  # nobody else can connect
        server = Server(address, process.pid, folder)
        with server.client(token) as client, ThreadPoolExecutor(1) as pool:
            assert classify(client, "red", 1)["label"] == "red"
            with locked(folder):  # the change has to wait
                answer = pool.submit(teach, client, "yellow", "yellow", range(3))
                time.sleep(1.0)
                process.send_signal(signal.SIGTERM)
                time.sleep(0.5)
                assert process.poll() is None and not answer.done()
                with pytest.raises(httpx.ConnectError):  # nobody new is let in
                    httpx.get(f"{address}health", trust_env=False)
            assert answer.result(60).status_code == 200
        _, log = process.communicate(timeout=60)
        assert process.returncode == 0, log
        assert "Traceback" not in log and token not in log
        assert all(line.startswith("{") and json.loads(line) for line in log.splitlines())  # to the end
        assert "yellow" in Model.load(folder, "cpu").class_names
    finally:
        process.kill()
        process.wait()


MISTAKES = {
    "no model": (("nowhere", "--port", "0"), {}, "no model folder"),
    "short token": (("MODEL",), {"NNGK_TOKEN": "short"}, "at least 16"),
    "no token file": (("MODEL", "--token-file", "nowhere"), {}, "cannot be read"),
    "port in use": (("MODEL", "--port", "PORT"), {}, "choose another"),
    "no such host": (("MODEL", "--host", "256.1.1.1", "--port", "0"), {}, "choose another"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_told_in_a_sentence(folder, monkeypatch, mistake):
    words, variables, told = MISTAKES[mistake]
    monkeypatch.delenv("NNGK_TOKEN", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        given = {"MODEL": folder, "PORT": taken.getsockname()[1]}
        with pytest.raises(InputError, match=told):
            cli(["serve", *(str(given.get(word, word)) for word in words)], standalone_mode=False)


def test_where_the_token_comes_from(tmp_path, monkeypatch):
    monkeypatch.delenv("NNGK_TOKEN", raising=False)
    assert read_token(None) is None
    monkeypatch.setenv("NNGK_TOKEN", TOKEN)
    assert read_token(None) == TOKEN
    (tmp_path / "token").write_text("from-a-file-not-a-line\n")
    assert read_token(tmp_path / "token") == "from-a-file-not-a-line"
    for weak in ("", "short", "with spaces in the middle", "ünïcödé-ünïcödé-ünïcödé"):
        (tmp_path / "token").write_text(weak, encoding="utf-8")
        with pytest.raises(InputError, match="openssl rand"):
            read_token(tmp_path / "token")


@pytest.mark.thorough
def test_a_missing_package_names_its_extra(tmp_path):
    (tmp_path / "uvicorn.py").write_text("raise ModuleNotFoundError(\"No module named 'uvicorn'\", name='uvicorn')")
    surroundings = without_token()
    surroundings["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{surroundings['PYTHONPATH']}"
    done = subprocess.run(
        command("serve", "x"), env=surroundings, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 1 and "pip install 'nngk[serve]'" in done.stderr and "'uvicorn'" in done.stderr


def test_the_token_is_no_option():
    """Options are seen by every user of a machine, and stay in the history of a shell."""
    shown = nngk("serve", "--help").stdout
    assert "--token-file" in shown and "--token " not in shown and "NNGK_TOKEN" in shown
