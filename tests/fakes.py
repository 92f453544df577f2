"""Stand-ins for what a test machine lacks: a clock to turn by hand, and NVIDIA's driver."""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any


class FakeClock:
    """A clock that moves only when told to."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def tick(self, seconds: float) -> None:
        self.now_s += seconds


class NVMLError(Exception):
    """As in nvidia-ml-py: the base of the driver's errors."""


class NVMLError_NotSupported(NVMLError):
    """The card does not have this query."""

    def __str__(self) -> str:
        return "Not Supported"


class NVMLError_Unknown(NVMLError):
    def __str__(self) -> str:
        return "Unknown Error"


class NVMLError_NotFound(NVMLError):
    def __str__(self) -> str:
        return "Not Found"


# What each query is called in the module, by the short name that tests use.
QUERIES = {
    "power": "nvmlDeviceGetPowerUsage",
    "energy": "nvmlDeviceGetTotalEnergyConsumption",
    "clock": "nvmlDeviceGetClockInfo",
    "temperature": "nvmlDeviceGetTemperature",
    "memory": "nvmlDeviceGetMemoryInfo",
    "utilization": "nvmlDeviceGetUtilizationRates",
    "throttle": "nvmlDeviceGetCurrentClocksThrottleReasons",
}


class FakeGpu:
    """One card: its readings in NVML's own units, and what it refuses."""

    def __init__(self, uuid: str, name: str = "NVIDIA A100-SXM4-80GB", **readings: Any) -> None:
        self.uuid = uuid
        self.name = name
        self.readings: dict[str, Any] = {
            "power": 250_000,  # mW
            "energy": 1_000_000,  # mJ
            "clock": 1_410,  # MHz
            "temperature": 61,
            "memory": 40 * 2**30,
            "utilization": 97,
            "throttle": 0,
            **readings,
        }
        self.unsupported: set[str] = set()
        self.failing: dict[str, Callable[[int], bool]] = {}
        self.num_calls: dict[str, int] = {}

    def fail(self, query: str, on: Sequence[int] | None = None) -> "FakeGpu":
        """Refuse ``query`` with an unknown error, on these calls (from 1) or always."""
        self.failing[query] = (lambda call: True) if on is None else (lambda call: call in on)
        return self

    def ask(self, query: str) -> Any:
        call = self.num_calls[query] = self.num_calls.get(query, 0) + 1
        if query in self.unsupported:
            raise NVMLError_NotSupported
        if self.failing.get(query, lambda call: False)(call):
            raise NVMLError_Unknown
        return self.readings[query]


class _Field:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


class FakeNvml(ModuleType):
    """A module that stands for ``pynvml`` of nvidia-ml-py; cards in the driver's order."""

    def __init__(self, gpus: Sequence[FakeGpu], *, init_error: Exception | None = None) -> None:
        super().__init__("pynvml")
        self.gpus = list(gpus)
        self.num_open = 0
        self._init_error = init_error
        self._nvmlGetFunctionPointer = lambda name: None
        self.NVMLError = NVMLError
        self.NVMLError_NotSupported = NVMLError_NotSupported
        for short, name in QUERIES.items():
            setattr(self, name, self._query(short))

    def nvmlInit(self) -> None:
        if self._init_error is not None:
            raise self._init_error
        self.num_open += 1

    def nvmlShutdown(self) -> None:
        self.num_open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        return self.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str | bytes) -> FakeGpu:
        wanted = uuid.decode() if isinstance(uuid, bytes) else uuid
        for gpu in self.gpus:
            if gpu.uuid == wanted:
                return gpu
        raise NVMLError_NotFound

    def nvmlDeviceGetName(self, gpu: FakeGpu) -> str:
        return gpu.name

    @staticmethod
    def _query(short: str) -> Callable[..., Any]:
        def ask(gpu: FakeGpu, *_: Any) -> Any:
            value = gpu.ask(short)
            if short == "memory":
                return _Field(used=value, total=80 * 2**30, free=80 * 2**30 - value)
            if short == "utilization":
                return _Field(gpu=value, memory=50)
            return value

        return ask
