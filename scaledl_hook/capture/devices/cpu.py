"""This process on the host: memory and share of the cores, through psutil."""

import psutil

from scaledl.records import DeviceSample, GpuLinks


class CpuDevice:
    """Resident memory, and utilisation as a share of one core (above 1 with several threads)."""

    def __init__(self) -> None:
        self.name = "cpu"
        self._process = psutil.Process()
        self._process.cpu_percent()  # the first call only sets the mark

    def read(self, at_s: float) -> DeviceSample | None:
        try:
            with self._process.oneshot():
                used = self._process.cpu_percent() / 100
                memory = float(self._process.memory_info().rss)
        except psutil.Error:
            return None
        return DeviceSample(
            at_s=at_s, device=self.name, memory_bytes=memory, utilization_fraction=used
        )

    def links(self) -> GpuLinks | None:
        return None

    def close(self) -> None:
        return
