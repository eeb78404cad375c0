"""Machines with slow lines between them, on this one: what benchmarks of several machines share.

Each is a network namespace of Linux with a tunnel device, and this program is the lines between them: it holds every
packet for some milliseconds, lets through so many a second, and drops some, as ``tc`` with netem would in kernels that
have it. Needs the rights to make namespaces (root).
"""

import contextlib
import fcntl
import os
import queue
import random
import shutil
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ADDRESSES = tuple(f"10.77.0.{number}" for number in range(1, 5))
Places = list[tuple[list[str], str]]


@contextmanager
def machines(delay: float, loss: float, rate: float = 0.0, count: int = 2) -> Iterator[Places]:
    """Give some machines, each as the words that start a command there and the name of its network device.

    Packets take ``delay`` milliseconds each way, ``loss`` percent are dropped, and of what a machine sends ``rate``
    megabits a second go through; 0 is as fast as it goes.
    """
    names = [f"nngk-{os.getpid()}-{i}" for i in range(count)]
    devices = [f"ng{os.getpid() % 100_000}t{i}" for i in range(count)]
    ends = {}
    try:
        for name, device, address in zip(names, devices, ADDRESSES):
            _ip("netns", "add", name)
            ends[bytes(map(int, address.split(".")))] = _tunnel(device)
            _ip("link", "set", device, "netns", name)
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", device)
            _ip("-n", name, "link", "set", device, "mtu", "9000", "up")
            _ip("-n", name, "link", "set", "lo", "up")
        for here in ends.values():
            line = Line(here, ends, delay / 1e3, loss / 100, rate * 1e6 / 8)
            for way in (line.take, line.give):
                threading.Thread(target=way, daemon=True).start()
        yield [(["ip", "netns", "exec", name], device) for name, device in zip(names, devices)]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        for end in ends.values():
            os.close(end)


class Line:
    """What one machine sends: packets that come out of its device go into another, late, and some never."""

    def __init__(self, here: int, ends: dict[bytes, int], delay: float, loss: float, bandwidth: float) -> None:
        self.here, self.ends, self.delay, self.loss, self.bandwidth = here, ends, delay, loss, bandwidth
        self.held: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
        self.random = random.Random(here)

    def take(self) -> None:
        """Read packets for as long as the device is there."""
        free = 0.0  # when the last bit of the packet before has left
        with contextlib.suppress(OSError):
            while packet := os.read(self.here, 1 << 16):
                if self.random.random() < self.loss:
                    continue
                free = max(free, time.monotonic()) + (len(packet) / self.bandwidth if self.bandwidth else 0.0)
                self.held.put((free + self.delay, packet))

    def give(self) -> None:
        """Write packets when their time has come."""
        with contextlib.suppress(OSError):
            while True:
                due, packet = self.held.get()
                time.sleep(max(0.0, due - time.monotonic()))
                there = self.ends.get(packet[16:20])  # where an IPv4 packet wants to go
                if there is not None:
                    os.write(there, packet)


def can_make_machines() -> bool:
    """Return whether this process may make network namespaces and tunnels."""
    return not os.geteuid() and shutil.which("ip") is not None and Path("/dev/net/tun").exists()


def _tunnel(device: str) -> int:
    """Make a network device whose packets this process reads and writes."""
    handle = os.open("/dev/net/tun", os.O_RDWR)
    kind = 0x0001 | 0x1000  # IFF_TUN, IFF_NO_PI: IP packets and nothing else
    fcntl.ioctl(handle, 0x400454CA, struct.pack("16sH22x", device.encode(), kind))  # TUNSETIFF
    return handle


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"ip {' '.join(words)} failed: {done.stderr.strip()}")
