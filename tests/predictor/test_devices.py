import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaledl.errors import UsageError
from scaledl.predictor.devices import (
    catalogue,
    default_links,
    find_gpu,
    find_link,
    parse_link,
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Tesla K80", "K80"),
        ("Tesla P100-PCIE-16GB", "P100-PCIe-16GB"),
        ("Tesla V100-SXM2-32GB", "V100-SXM2-32GB"),
        ("Tesla T4", "T4"),
        ("NVIDIA GeForce RTX 2080 Ti", "RTX-2080-Ti"),
        ("NVIDIA GeForce RTX 3090", "RTX-3090"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe-80GB"),
        ("NVIDIA A100-PCIE-40GB", "A100-PCIe-40GB"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA H20", "H20"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA B200", "B200"),
        ("AMD Instinct MI250X / MI250", "MI250X"),
        ("AMD Instinct MI300X", "MI300X"),
        ("a100-80gb", "A100-SXM4-80GB"),
    ],
)
def test_device_names_of_torch_are_found(name: str, expected: str) -> None:
    gpu = find_gpu(name)
    assert gpu is not None
    assert gpu.name == expected


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA GeForce RTX 2080",
        "NVIDIA A100X",
        "NVIDIA GeForce RTX 3090 Ti",
        "NVIDIA Q9000",
        "NVIDIA",
        "",
    ],
)
def test_W13_unknown_device_is_none_not_a_near_name(name: str) -> None:
    assert find_gpu(name) is None


@given(st.text(max_size=40))
def test_any_text_is_a_gpu_or_none(name: str) -> None:
    gpu = find_gpu(name)
    assert gpu is None or gpu.memory_bytes


def test_every_entry_is_found_by_its_own_name_and_has_sane_numbers() -> None:
    for entry in catalogue().gpu:
        spec = find_gpu(entry.name)
        assert spec == entry.spec
        assert 8 * 2**30 <= (spec.memory_bytes or 0) <= 300 * 2**30
        assert 1e11 < (spec.memory_bytes_per_s or 0) < 1e13
        assert 1e12 < spec.peak_flops["float32"] < 1e15
        assert all(value >= spec.peak_flops["float32"] for value in spec.peak_flops.values())
        assert 50 <= (spec.tdp_w or 0) <= 1500
        assert find_link(entry.intra).kind == entry.intra


def test_no_two_entries_share_a_name() -> None:
    known = catalogue()
    names = [
        frozenset(n.lower().replace("-", " ").split()) for e in known.gpu for n in {*e.aliases}
    ]
    assert len(names) == len(set(names))
    kinds = [k for e in known.link for k in (e.kind, *e.aliases)]
    assert len(kinds) == len(set(kinds))


def test_every_entry_names_its_source_and_date() -> None:
    for entry in (*catalogue().gpu, *catalogue().link):
        assert len(entry.source) > 10
        assert entry.date.startswith("20")


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [("200Gb/s", 25e9), ("25GB/s", 25e9), ("100 Gbit/s", 12.5e9), ("625Mb/s", 78.125e6)],
)
def test_rates_are_read_in_bits_and_bytes(text: str, bytes_per_s: float) -> None:
    link = parse_link(text)
    assert link.bytes_per_s == pytest.approx(bytes_per_s)
    assert not link.measured


def test_link_classes_are_read_by_name() -> None:
    assert parse_link("NVLink4") == find_link("nvlink4")
    assert find_link("carrier-pigeon").kind == "unknown"


@pytest.mark.parametrize("text", ["", "fast", "200", "-3GB/s", "0GB/s", "200 Gb", "nvlink9"])
def test_what_is_no_link_is_refused_with_the_value_seen(text: str) -> None:
    with pytest.raises(UsageError, match=r"not a link: .*Write a rate"):
        parse_link(text)


def test_default_links_follow_the_gpu_and_doubt_the_network() -> None:
    intra, inter = default_links(find_gpu("NVIDIA H100 80GB HBM3"), is_cpu=False)
    assert intra.kind == "nvlink4"
    assert inter.kind == "unknown"
    assert inter.rel_sigma >= 0.6
    assert default_links(None, is_cpu=False)[0].kind == "unknown"
    assert default_links(find_gpu("T4"), is_cpu=False)[1] == find_link("unknown")
    cpu_intra, cpu_inter = default_links(None, is_cpu=True)
    assert cpu_intra.kind == "loopback"
    assert cpu_inter.rel_sigma >= 1.0


def test_machines_with_faster_links_inside_are_expected_to_have_faster_networks() -> None:
    names = ("T4", "V100-SXM2-16GB", "A100-SXM4-80GB", "H100-SXM")
    rates = [default_links(find_gpu(name), is_cpu=False)[1].bytes_per_s for name in names]
    assert rates == sorted(rates)
    assert len(set(rates)) == len(rates)
