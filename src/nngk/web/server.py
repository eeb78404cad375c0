"""A process that listens: sockets, signals, tokens and logs around the application."""

import logging
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import uvicorn

from nngk.device import keep_memory, keep_objects, pick_device
from nngk.errors import InputError
from nngk.networks.embed import MOST_WORKERS
from nngk.web.app import create_app
from nngk.web.limits import Limits
from nngk.web.patience import PatientProtocol
from nngk.web.request_log import JsonLines

_CONNECTIONS = 1024
_TURN = 5e-4  # seconds: passes wait less for others than by default (5 ms), and need not give way in every layer


def serve(
    folder: Path,
    *,
    host: str,
    port: int,
    device: str,
    token: str | None,
    limits: Limits,
    gallery: str | None = None,
    started: Callable[[str], object],
) -> None:
    """Serve the model of a folder until SIGTERM or SIGINT, then answer what was asked and return.

    ``started`` hears the address when the server is ready; port 0 takes any that is free.
    """
    with _listening(host, port) as listener:
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{listener.getsockname()[1]}/"
        app = create_app(
            folder,
            device=device,
            token=token,
            limits=limits,
            host=host,
            gallery=gallery,
            workers=_workers(device),
            started=lambda: started(address),
        )
        keep_objects()
        _log_as_json()
        config = uvicorn.Config(
            app,
            http=PatientProtocol,
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=_CONNECTIONS,
            timeout_graceful_shutdown=int(2 * limits.seconds) + 1,
        )
        server = uvicorn.Server(config)

        def stop(number: int, frame: Any) -> None:
            server.should_exit = True

        # uvicorn repeats a signal after it has stopped: this ends the process as after any other work that is done.
        before = signal.signal(signal.SIGTERM, stop)
        try:
            server.run(sockets=[listener])
        finally:
            signal.signal(signal.SIGTERM, before)


def _workers(device: str) -> int:
    """Prepare the process for passes of the network and return how many run side by side.

    On a CPU each has its part of the threads.
    """
    if pick_device(device).type != "cpu":
        return 1
    keep_memory()
    sys.setswitchinterval(_TURN)
    threads = torch.get_num_threads()
    workers = min(threads, MOST_WORKERS)
    torch.set_num_threads(max(1, threads // workers))
    return workers


def _listening(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=_CONNECTIONS)
    except OSError as error:
        raise InputError(
            f"The server cannot listen at {host}, port {port} ({error.strerror or error}): choose another with --port "
            "or --host."
        ) from None


def _log_as_json() -> None:
    """Write the log as lines of JSON on standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    levels = {"uvicorn": logging.WARNING, "nngk.requests": logging.INFO, "python_multipart": logging.ERROR}
    for name, level in levels.items():
        log = logging.getLogger(name)
        log.handlers, log.propagate = [handler], False
        log.setLevel(level)
