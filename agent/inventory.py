"""Who tells of the GPUs: the driver, or a simulation of it."""

from typing import Protocol

from llmgw.core.gpu_reading import Reading


class NotAnswered(Exception):
    """The driver could not be asked; the text says why. It does not mean that all is well."""


class Inventory(Protocol):
    async def read(self) -> Reading:
        """Raises NotAnswered. Has no deadline of its own: a caller who gives up cancels it."""
        ...

    def close(self) -> None:
        """At once, for good."""
        ...
