"""Starts N workers of one program on this machine, each with its own TF_CONFIG.

    python examples/multi_worker/launch.py --workers 2 python examples/multi_worker/train.py

The lines of worker 0 are printed unchanged, those of others with the prefix "[1] ", "[2] ". If one
worker fails, the others are terminated after a minute; the exit status is that of the first one
that failed. Ctrl-C and SIGTERM are passed to all. On several machines no launcher is needed: see
README.md in this folder.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

PATIENCE = 60.0  # seconds that the others get after a failure


def main() -> None:
    parser = argparse.ArgumentParser(description="Starts workers on this machine; see the file.")
    parser.add_argument("--workers", type=int, default=2, help="number of workers")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the program and its arguments")
    arguments = parser.parse_args()
    if arguments.workers < 1 or not arguments.command:
        parser.error("give at least one worker and a command to run")
    if shutil.which(arguments.command[0]) is None:
        parser.error(f"no such program: {arguments.command[0]}")
    sys.exit(launch(arguments.command, arguments.workers))


def launch(command: list[str], count: int, environment: dict[str, str] | None = None) -> int:
    """Runs `count` workers until they end; returns 0, or the status of the first that failed."""
    addresses = [f"localhost:{port}" for port in free_ports(count)]
    workers = [
        subprocess.Popen(
            command,
            env={**os.environ, **(environment or {}), "TF_CONFIG": tf_config(addresses, index)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            bufsize=1,
        )
        for index in range(count)
    ]
    printers = [
        threading.Thread(target=forward, args=(worker, f"[{index}] " if index else ""))
        for index, worker in enumerate(workers)
    ]
    for printer in printers:
        printer.start()

    def to_all(number, frame):
        for worker in workers:
            worker.send_signal(number)

    previous = {n: signal.signal(n, to_all) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        status = wait(workers)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        for printer in printers:
            printer.join()
    return status


def wait(workers: list[subprocess.Popen]) -> int:
    """Waits for all workers, but after a failure only up to PATIENCE seconds."""
    failed: int | None = None
    deadline = float("inf")
    while any(worker.poll() is None for worker in workers):
        for index, worker in enumerate(workers):
            if failed is None and worker.poll():
                failed = worker.returncode
                deadline = time.monotonic() + PATIENCE
                print(f"worker {index} ended with status {failed}", file=sys.stderr, flush=True)
        if time.monotonic() > deadline:
            for worker in workers:
                worker.kill()
        time.sleep(0.1)
    statuses = [worker.returncode for worker in workers]
    status = failed if failed is not None else next((s for s in statuses if s), 0)
    return 128 - status if status < 0 else status  # a shell's exit status for signals


def tf_config(addresses: list[str], index: int) -> str:
    """The TF_CONFIG of worker `index`: the addresses of all workers, and its own index."""
    return json.dumps(
        {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
    )


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("localhost", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def forward(worker: subprocess.Popen, prefix: str) -> None:
    for line in worker.stdout:
        print(f"{prefix}{line}", end="", flush=True)


if __name__ == "__main__":
    main()
