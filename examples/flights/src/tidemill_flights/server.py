"""The demo's server: `tidemill up` as a process of its own, which may be killed and started
again.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from tidemill.client import Client
from tidemill.errors import TidemillError, Unavailable
from tidemill.runtime.clock import Clock

START_S_MAX = 60.0


@dataclass(slots=True)
class DemoServer:
    """One server on `directory/state`, which lets Spark write a backlog of `spark_rows` or more."""

    directory: Path
    clock: Clock
    jars: Path
    spark_rows: int = 20_000
    process: asyncio.subprocess.Process | None = None
    address: str = ""

    @property
    def log(self) -> Path:
        """The log of the server, of all its starts."""
        return self.directory / "server.log"

    @property
    def state(self) -> Path:
        """The state directory of the server."""
        return self.directory / "state"

    async def start(self) -> Client:
        """Start the process; a client once it answers. Raises: Unavailable with the end of its
        log.
        """
        config = self.directory / "server.toml"
        config.write_text(
            f'[reclock]\nspark_backlog_rows = {self.spark_rows}\n[spark]\njars = "{self.jars}"\n'
        )
        address = self.state / "grpc.address"
        address.unlink(missing_ok=True)
        log = self.log
        with log.open("ab") as sink:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tidemill.client", "up", "--dir", str(self.state),
                "--grpc", "127.0.0.1:0", "--http-port", "0", "--config", str(config),
                cwd=self.directory, stdout=sink, stderr=sink,
            )  # fmt: skip
        deadline_s = self.clock.monotonic_s() + START_S_MAX
        while self.clock.monotonic_s() < deadline_s and self.process.returncode is None:
            await self.clock.sleep(0.2)
            if not address.exists():
                continue
            self.address = address.read_text().strip()
            client = Client(self.address)
            try:
                await asyncio.to_thread(client.get)
            except TidemillError:
                client.close()
                continue
            return client
        raise Unavailable(f"the server did not start: {_last_lines(log)} (log: {log})")

    async def end(self) -> None:
        """Return once the process has ended by itself."""
        if self.process is not None:
            await self.process.wait()

    async def kill(self) -> int:
        """SIGKILL, as a power cut would; the process id that is no more."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        await self.process.wait()
        return self.process.pid

    async def stop(self) -> None:
        """Stop the server in order; kill it if it does not end."""
        if self.process is None or self.process.returncode is not None:
            return
        self.process.terminate()
        try:
            await asyncio.wait_for(self.process.wait(), 20.0)
        except TimeoutError:
            await self.kill()


def _last_lines(log: Path, count: int = 4) -> str:
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return " | ".join(lines[-count:])
