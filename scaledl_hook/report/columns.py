"""Columns of the what-if table that stand only where some row knows their value."""

from scaledl.records import ScalingRow
from scaledl.report.text import Column, decimals_by_doubt
from scaledl.units import format_bytes, format_energy, format_fraction, format_seconds, format_usd


def add_optional(columns: list[Column], cells: list[list[str]], rows: list[ScalingRow]) -> None:
    """Columns that only stand where some row knows their value; speed and efficiency always."""
    no_epoch = not any(row.epoch_s for row in rows)
    extra = [
        (
            Column(title="epoch", give_up=1),
            not no_epoch,
            [format_seconds(r.epoch_s.mean if r.epoch_s else None) for r in rows],
        ),
        (
            Column(title="left", give_up=1),
            no_epoch and any(r.remaining_s for r in rows),
            [format_seconds(r.remaining_s.mean if r.remaining_s else None) for r in rows],
        ),
        (Column(title="speed"), True, [speed_text(r) for r in rows]),
        (
            Column(title="eff.", give_up=2),
            True,
            [format_fraction(r.efficiency_fraction) for r in rows],
        ),
        (
            Column(title="cost", give_up=3),
            any(r.cost_usd is not None for r in rows),
            [format_usd(r.cost_usd) for r in rows],
        ),
        (
            Column(title="cost left", give_up=3),
            no_epoch and any(r.remaining_usd is not None for r in rows),
            [format_usd(r.remaining_usd) for r in rows],
        ),
        (
            Column(title="energy", give_up=4),
            any(r.energy_j is not None for r in rows),
            [format_energy(r.energy_j) for r in rows],
        ),
        (
            Column(title="energy left", give_up=4),
            no_epoch and any(r.remaining_j is not None for r in rows),
            [format_energy(r.remaining_j) for r in rows],
        ),
        (
            Column(title="memory", give_up=5),
            any(r.memory is not None and r.fits is not True for r in rows),
            [memory_text(r) for r in rows],
        ),
    ]
    for column, wanted, texts in extra:
        if not wanted:
            continue
        columns.append(column)
        for line, row, text in zip(cells, rows, texts, strict=True):
            known = row.fits is not False or column.title == "memory"
            line.append(text if known else "n/a")


def speed_text(row: ScalingRow) -> str:
    """Speed against the running count, with the decimals its doubt allows."""
    if row.speedup is None:
        return "n/a"
    half = 0.0
    if row.basis != "measured" and row.step_s.mean > 0:
        half = row.speedup * (row.step_s.high - row.step_s.low) / 2 / row.step_s.mean
    if row.speedup < 0.005:
        return "<0.01x"
    return f"{row.speedup:.{min(2, decimals_by_doubt(row.speedup, half / 2))}f}x"


def memory_text(row: ScalingRow) -> str:
    """Expected peak, of what there is: ``91 of 80 GiB``."""
    found = row.memory
    if found is None:
        return "n/a"
    if found.capacity is None:
        return format_bytes(found.total)
    total, capacity = format_bytes(found.total), format_bytes(found.capacity)
    same_unit = total.split()[-1] == capacity.split()[-1]
    return f"{total.split()[0] if same_unit else total} of {capacity}"
