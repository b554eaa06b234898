"""Ours beside other libraries: on a workload, against floors and peers that are not ours.

    python benchmarks/beside.py FOLDER [--rounds N] [--only TASK ...]

FOLDER holds the workload (`workload.py`), the harness (`harness.py`) and the peers (`peers/`), of
which those run whose environments are set up in `.bench` (`FOLDER/setup.sh` does that). Each
contestant has a process of its own; they take turns, and what counts is the median of the ratios to
the floor.
"""

import argparse
import importlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

_HERE = Path(__file__).resolve().parent
_PEERS = {
    "pydantic-ai": ("pydai", "pydai"),
    "litellm": ("litellmproxy", "litellm"),
    "langchain": ("langchain", "langchain"),
    "any-llm": ("anyllm", "anyllm"),
}
"""The environments and the modules of the peers."""


class Task(NamedTuple):
    """What is done, the floor's name for it, and which peers do it, too."""

    name: str
    floor: str
    peers: tuple[str, ...] = tuple(_PEERS)
    has_again: bool = False


TASKS = (
    Task("to_wire.anthropic", "to_wire.anthropic.msgspec", has_again=True),
    Task("to_wire.openai", "to_wire.openai.msgspec", has_again=True),
    Task("to_wire.responses", "to_wire.responses.msgspec", has_again=True),
    Task("from_wire.anthropic", "from_wire.anthropic.msgspec"),
    Task("from_wire.openai", "from_wire.openai.msgspec"),
    Task("stream.anthropic", "stream.anthropic.split_decode"),
    Task("stream.openai", "stream.openai.split_decode"),
    Task("xlate.a2o", "xlate.a2o.split_decode_encode", ("litellm", "any-llm")),
    Task("xlate.o2a", "xlate.o2a.split_decode_encode", ("litellm", "any-llm")),
    Task("history.dump", "history.dump", ("pydantic-ai", "langchain")),
    Task("history.load", "history.load", ("pydantic-ai", "langchain")),
)


def rows(task: Task) -> list[tuple[str, str, str, str]]:
    """The contestants of a task: what they are called, environment, module, case."""
    found = [("floor", "own", "floor", task.floor), ("metis", "own", "contestant", task.name)]
    if task.has_again:
        found.append(("metis, again", "own", "contestant", f"{task.name}.again"))
    return found + [(peer, *_PEERS[peer], task.name) for peer in task.peers]


def arena(folder: Path, into: Path) -> None:
    """A copy of the folder with ours among the peers; all but that are links."""
    (into / "peers").mkdir()
    for each in folder.glob("*.py"):
        (into / each.name).symlink_to(each)
    # The harness looks for modules beside itself, so it has to stand here.
    (into / "harness.py").unlink()
    (into / "harness.py").write_bytes((folder / "harness.py").read_bytes())
    for each in (*(folder / "peers").glob("*.py"), _HERE / "contestant.py"):
        (into / "peers" / each.name).symlink_to(each)


def _silent(_: object) -> None:
    pass


def main() -> None:
    """Run every task, and print a line for each contestant."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", nargs="+", default=[], metavar="TASK")
    arguments = parser.parse_args()
    # The floors need msgspec, which ours has; peers bring what they need.
    os.environ |= {"BENCH_PY_OWN": sys.executable, "PYTHONPATH": str(_HERE.parent / "src")}
    os.environ.setdefault("BENCH_VENVS", str(Path.cwd() / ".bench"))
    Path(os.environ["BENCH_VENVS"]).mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        arena(arguments.folder.resolve(), Path(place))
        sys.path.insert(0, place)
        harness: Any = importlib.import_module("harness")
        for task in TASKS:
            if arguments.only and not any(task.name.startswith(one) for one in arguments.only):
                continue
            table = harness.Table(task.name, rows(task), "floor", rounds=arguments.rounds)
            table.print = _silent  # it has more columns than we publish
            for found in table.run():
                ratio = found.get("err") or f"{found['ratio_cpu']:8.2f}"
                print(f"{task.name:<22}{found['label']:<22}{ratio}", flush=True)


if __name__ == "__main__":
    main()
