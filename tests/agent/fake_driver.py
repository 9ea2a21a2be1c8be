"""The fake driver as a test writes it, and the child process that asks it through the real binding."""

from pathlib import Path

from attrs import define, field

from agent.driver_child import DriverChild


@define(eq=False)
class FakeDriver:
    folder: Path
    script: Path
    child: DriverChild = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.says()
        self.child = DriverChild(env={"LD_LIBRARY_PATH": str(self.folder), "FAKE_NVML": str(self.script)})

    def says(self, *lines: str) -> None:
        new = self.script.with_suffix(".new")
        new.write_text("".join(f"{line}\n" for line in lines))
        new.rename(self.script)

    def close(self) -> None:
        self.child.close()
