"""The server process of the local model; it ends when its parent does.

It is started as a script with the package directory, the weights file, a port and the context size,
prints the address at which it listens, and runs until its standard input ends.
"""

import os
import sys
from importlib import import_module
from typing import Any


def main(packages: str, weights: str, port: int, context_tokens: int) -> None:
    """Serve Chat Completions on loopback."""
    sys.path.insert(0, packages)
    llama: Any = import_module("xllamacpp")
    params = llama.CommonParams()
    params.model.path = weights
    params.model_alias = {"smollm2-135m"}
    params.hostnames = ["127.0.0.1"]
    params.port = port
    params.n_ctx = context_tokens
    params.n_parallel = 1
    params.warmup = False
    # A model this small writes nonsense unless it nearly always picks the likeliest token.
    params.sampling.temp = 0.1
    params.sampling.penalty_repeat = 1.1
    # llama.cpp threads wait by spinning; half of the cores stays free for other programs.
    params.cpuparams.n_threads = max(1, (os.cpu_count() or 2) // 2)
    server = llama.Server(params)
    print(server.listening_address, flush=True)  # noqa: T201 - this line is for the parent
    # Standard input ends when the parent dies, even if it is killed.
    sys.stdin.read()
    # The threads of the server would keep a normal exit waiting.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
