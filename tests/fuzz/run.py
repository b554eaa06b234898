"""Run the fuzz targets for some seconds: `make fuzz TIME=3600`.

An input that raises anything but a MetisError, takes more than a second, or needs more than twenty
times its size in memory is written to `regressions/<target>/`, where the tests read it for ever.
"""

import hashlib
import logging
import random
import sys
import time
import tracemalloc
from pathlib import Path

from fuzz.targets import TARGETS, Target, seeds
from metis.canonical import MetisError

REGRESSIONS = Path(__file__).parent / "regressions"
MAX_SECONDS = 1.0
MAX_GROWTH = 20
ROOM = 8_000_000
"""Memory that an input of any size may need: caches, compiled patterns."""
_MAX_INPUT = 1_000_000
_MEASURED = 200
"""Each so many inputs one is measured, because measuring memory takes time."""
_PIECES = (
    b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"\n", b"\r\n", b"\n\n", b"data: ", b"event: ",
    b"null", b"true", b"-1", b"1e999", b"99999999999999999999", b"\xff", b"\xed\xa0\x80",
    b"\\ud800", b"\\u0000", b"\0", b"\xef\xbb\xbf", b"[DONE]", b"{}" * 50, b"[" * 500,
)  # fmt: skip


class Mutator:
    """Makes inputs of seeds; the same seed number gives the same inputs."""

    def __init__(self, inputs: list[bytes], seed: int) -> None:
        self._inputs = inputs
        self._random = random.Random(seed)  # noqa: S311 - inputs that can be made again

    def next(self) -> bytes:
        """Return the next input."""
        chance = self._random
        data = bytearray(chance.choice(self._inputs))
        for _ in range(chance.randint(1, 4)):
            self._change(data)
        return bytes(data[:_MAX_INPUT])

    def _change(self, data: bytearray) -> None:
        chance = self._random
        start = chance.randint(0, len(data))
        end = min(len(data), start + chance.choice((1, 4, 40, 400)))
        match chance.randint(0, 5):
            case 0:
                del data[start:end]
            case 1:
                data[start:start] = chance.choice(_PIECES)
            case 2:
                data[start:end] = chance.choice(_PIECES)
            case 3:
                data[start:start] = data[start:end] * chance.choice((1, 3, 50))
            case 4:
                other = chance.choice(self._inputs)
                place = chance.randint(0, len(other))
                data[start:end] = other[place : place + 200]
            case _:
                if data:
                    data[start % len(data)] = chance.randint(0, 255)


def fault_of(target: Target, data: bytes) -> str | None:
    """Run a target; return what is wrong with it for this input, if anything is."""
    start = time.process_time()
    try:
        target(data)
    except MetisError:
        pass
    except Exception as error:  # noqa: BLE001 - any other exception is what we look for
        return f"{type(error).__name__}: {error}"
    seconds = time.process_time() - start
    return f"{seconds:.1f} seconds" if seconds > MAX_SECONDS else None


def growth_of(target: Target, data: bytes) -> str | None:
    """Return by how much an input grows in memory, if that is too much."""
    tracemalloc.start()
    try:
        fault = fault_of(target, data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    if fault is not None and not fault.endswith("seconds"):
        return fault
    return f"{peak:,} bytes of memory" if peak > MAX_GROWTH * len(data) + ROOM else None


def store(name: str, data: bytes) -> Path:
    """Write an input to the regressions of a target."""
    path = REGRESSIONS / name / hashlib.sha256(data).hexdigest()[:16]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def fuzz(name: str, until: float, seed: int) -> tuple[int, int]:
    """Run one target until a moment; return the numbers of inputs and of faults."""
    mutator, target = Mutator(seeds(name), seed), TARGETS[name]
    count = faults = 0
    while time.monotonic() < until:
        data = mutator.next()
        count += 1
        measure = growth_of if count % _MEASURED == 0 else fault_of
        fault = measure(target, data)
        if fault is not None:
            faults += 1
            print(f"{name}: {fault}: {store(name, data)}", flush=True)  # noqa: T201 - the output of a command
    return count, faults


def main() -> None:
    """Run all targets, or those that are named, for an equal share of the time."""
    logging.disable()
    total, *names = sys.argv[1:] or ["60"]
    names = names or sorted(TARGETS)
    seed = int(time.time())
    print(f"seed {seed}")  # noqa: T201 - the output of a command
    faults = 0
    for name in names:
        count, failed = fuzz(name, time.monotonic() + float(total) / len(names), seed)
        faults += failed
        print(f"{name}: {count:,} inputs, {failed} faults", flush=True)  # noqa: T201 - the output of a command
    sys.exit(faults > 0)


if __name__ == "__main__":
    main()
