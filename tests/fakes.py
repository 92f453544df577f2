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
    """As in nvidia-ml-py: the base of the driver's errors; a number makes the class of it."""

    def __new__(cls, value: int | None = None) -> "NVMLError":
        return super().__new__({3: NVMLError_NotSupported}.get(value or 0, cls))


class NVMLError_NotSupported(NVMLError):
    """The card does not have this query."""

    def __str__(self) -> str:
        return "Not Supported"


class NVMLError_Unknown(NVMLError):
    def __str__(self) -> str:
        return "Unknown Error"


class NVMLError_NoPermission(NVMLError):
    def __str__(self) -> str:
        return "Insufficient Permissions"


class NVMLError_GpuIsLost(NVMLError):
    def __str__(self) -> str:
        return "GPU is lost"


class NVMLError_FunctionNotFound(NVMLError):
    def __str__(self) -> str:
        return "Function Not Found"


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
    "pcie": "nvmlDeviceGetPcieThroughput",
    "pcie generation": "nvmlDeviceGetCurrPcieLinkGeneration",
    "pcie width": "nvmlDeviceGetCurrPcieLinkWidth",
    "max pcie generation": "nvmlDeviceGetMaxPcieLinkGeneration",
    "max pcie width": "nvmlDeviceGetMaxPcieLinkWidth",
    "memory errors": "nvmlDeviceGetTotalEccErrors",
    "mig": "nvmlDeviceGetMigMode",
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
            "pcie": 2_000,  # KB/s
            "pcie generation": 4,
            "pcie width": 16,
            "max pcie generation": 4,
            "max pcie width": 16,
            "memory errors": 0,
            "mig": [0, 0],
            **readings,
        }
        self.slices: dict[int, FakeGpu] = {}  # by NVML's number, which may have gaps
        self.instances = (0, 0)
        self.links: list[Any] = []  # of NVLink: the card at the other end, or "switch"
        self.link_version, self.link_mb_per_s, self.link_kib = 6, 25_000, 5_000
        self.bus, self.socket = 0, 0
        self.unsupported: set[str] = set()
        self.denied: set[str] = set()
        self.lost_from: int | None = None  # which call of any kind finds it gone
        self.failing: dict[str, Callable[[int], bool]] = {}
        self.num_calls: dict[str, int] = {}

    def fail(self, query: str, on: Sequence[int] | None = None) -> "FakeGpu":
        """Refuse ``query`` with an unknown error, on these calls (from 1) or always."""
        self.failing[query] = (lambda call: True) if on is None else (lambda call: call in on)
        return self

    def ask(self, query: str) -> Any:
        call = self.num_calls[query] = self.num_calls.get(query, 0) + 1
        if self.lost_from is not None and sum(self.num_calls.values()) >= self.lost_from:
            raise NVMLError_GpuIsLost
        if query in self.unsupported:
            raise NVMLError_NotSupported
        if query in self.denied:
            raise NVMLError_NoPermission
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
        for number, gpu in enumerate(self.gpus):
            gpu.bus = gpu.bus or number + 1
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
        for gpu in [*self.gpus, *(piece for g in self.gpus for piece in g.slices.values())]:
            if gpu.uuid == wanted:
                return gpu
        raise NVMLError_NotFound

    def nvmlDeviceGetName(self, gpu: FakeGpu) -> str:
        return gpu.name

    def nvmlDeviceGetUUID(self, gpu: FakeGpu) -> str:
        return gpu.uuid

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu: FakeGpu) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: FakeGpu, index: int) -> FakeGpu:
        if index not in gpu.slices:
            raise NVMLError_NotFound
        return gpu.slices[index]

    def nvmlDeviceGetGpuInstanceId(self, gpu: FakeGpu) -> int:
        return gpu.instances[0]

    def nvmlDeviceGetComputeInstanceId(self, gpu: FakeGpu) -> int:
        return gpu.instances[1]

    def nvmlDeviceGetPciInfo(self, gpu: FakeGpu) -> _Field:
        return _Field(domain=0, bus=gpu.bus, device=0)

    def nvmlDeviceGetTopologyCommonAncestor(self, one: FakeGpu, two: FakeGpu) -> int:
        return 0 if one is two else 50 if one.socket != two.socket else 30

    def nvmlDeviceGetNvLinkState(self, gpu: FakeGpu, link: int) -> int:
        if not gpu.links:
            raise NVMLError_NotSupported
        return int(link < len(gpu.links))

    def nvmlDeviceGetNvLinkVersion(self, gpu: FakeGpu, link: int) -> int:
        return gpu.link_version

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, gpu: FakeGpu, link: int) -> int:
        return 2 if gpu.links[link] == "switch" else 0

    def nvmlDeviceGetNvLinkRemotePciInfo(self, gpu: FakeGpu, link: int) -> _Field:
        return self.nvmlDeviceGetPciInfo(gpu.links[link])

    def nvmlDeviceGetFieldValues(self, gpu: FakeGpu, fields: Sequence[Any]) -> list[_Field]:
        known = {90: gpu.link_mb_per_s, 138: gpu.link_kib, 139: gpu.link_kib}
        found = []
        for field in fields:
            number = known[field[0] if isinstance(field, tuple) else field]
            value = _Field(ullVal=number, uiVal=number)
            found.append(_Field(nvmlReturn=0 if gpu.links else 3, value=value))
        return found

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
