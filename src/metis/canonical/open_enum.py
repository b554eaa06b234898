"""OpenEnum: a closed list of values that still carries what a newer writer adds."""

import logging
from enum import StrEnum
from typing import Self

log = logging.getLogger("metis.canonical")


class OpenEnum(StrEnum):
    """A string enum whose unknown values are read with a warning and written back unchanged."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        if not isinstance(value, str):
            return None
        log.warning("unknown %s %.80r is kept as it is", cls.__name__, value)
        member = str.__new__(cls, value)
        member._name_ = value
        member._value_ = value
        return member

    @property
    def is_known(self) -> bool:
        """Whether this version of metis knows the value."""
        return self._value_ in type(self)._value2member_map_
