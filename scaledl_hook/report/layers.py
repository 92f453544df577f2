"""Where the step's time goes: by layer, by collective."""

from collections import defaultdict
from collections.abc import Iterable

import msgspec

from scaledl.records import CommEvent, LayerGraph, LayerTiming, ProfileWindow
from scaledl.report.exchange import same_collectives
from scaledl.report.text import Column, Style, safe_text, table_lines, wrap_text
from scaledl.units import format_bytes, format_fraction, format_seconds

OUTSIDE = "outside_layers"
# One more forward is what checkpointing costs; half as much again cannot be noise of a few kernels.
_TWICE = 1.5


class LayerRow(msgspec.Struct, frozen=True, kw_only=True):
    """One layer over all windows: mean times, its share of the step, its work."""

    fqn: str
    kind: str | None
    forward_s: float | None
    backward_s: float | None
    share_fraction: float | None
    recompute_s: float | None = None
    flops: float | None
    num_calls: int | None


class CommRow(msgspec.Struct, frozen=True, kw_only=True):
    """One class of collectives, means over its calls.

    ``transfer_s`` is the minimum over ranks, ``waiting_s`` what a rank's call took beyond it: both
    are of the calls that several ranks recorded, and then so is ``duration_s``, their sum.
    """

    op: str
    group_size: int
    crosses_nodes: bool
    num_bytes: int | None
    calls_per_step: float
    duration_s: float
    transfer_s: float | None
    waiting_s: float | None
    exposed_s: float | None


def _mean(values: Iterable[float | None]) -> float | None:
    """The mean of what is known; ``None`` where nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def layer_rows(
    graph: LayerGraph | None, windows: tuple[ProfileWindow, ...]
) -> tuple[LayerRow, ...]:
    """Rows of the layer table, the longest first, layers that were not seen last."""
    windows = _layered(windows)
    timings: dict[str, list[LayerTiming]] = defaultdict(list)
    for window in windows:
        for timing in window.layers:
            timings[timing.fqn].append(timing)
    nodes = {node.fqn: node for node in graph.nodes} if graph is not None else {}
    step_s = _mean(window.step_s for window in windows)
    rows = []
    for fqn in dict.fromkeys([*nodes, *timings, *([OUTSIDE] if windows else [])]):
        node, seen = nodes.get(fqn), timings.get(fqn, [])
        forward_s = _mean(t.forward_s for t in seen)
        backward_s = _mean(t.backward_s for t in seen)
        if fqn == OUTSIDE and not seen:
            forward_s = _mean(w.outside_forward_s for w in windows)
            backward_s = _mean(w.outside_backward_s for w in windows)
        again_s = _mean(t.recompute_s for t in seen)
        share = None
        if forward_s is not None and backward_s is not None and step_s:
            share = (forward_s + backward_s + (again_s or 0.0)) / step_s
        rows.append(
            LayerRow(
                fqn=fqn,
                kind=node.kind if node is not None else None,
                forward_s=forward_s,
                backward_s=backward_s,
                share_fraction=share,
                recompute_s=again_s,
                flops=node.flops_forward + node.flops_backward if node is not None else None,
                num_calls=seen[-1].num_calls if seen else None,
            )
        )
    rows.sort(key=lambda r: (r.forward_s is None, -(r.forward_s or 0.0) - (r.backward_s or 0.0)))
    return tuple(rows)


def _layered(windows: tuple[ProfileWindow, ...]) -> tuple[ProfileWindow, ...]:
    """Those that timed layers; a window of collectives alone is no sample of a layer.

    Seconds of kernels and seconds between two stamps are not averaged: kernels, where there are.
    """
    told = tuple(w for w in windows if w.layers)
    kernels = tuple(w for w in told if w.layers[0].source == "profiler")
    return kernels or told or windows


def render_layers(
    graph: LayerGraph | None,
    windows: tuple[ProfileWindow, ...],
    top: int = 15,
    *,
    width: int = 96,
    unicode: bool = True,
    color: bool = False,
) -> str:
    """The ``top`` longest layers; the others summed in one row; what is outside layers last."""
    style = Style(width=width, unicode=unicode, color=color)
    windows = _layered(windows)
    rows = layer_rows(graph, windows)
    inner = [row for row in rows if row.fqn != OUTSIDE]
    if not inner:
        return "no layer was measured: the run ended before its first sampled step"
    shown, rest = inner[:top], inner[top:]
    if rest:
        shown.append(_sum_row(rest))
    shown += [row for row in rows if row.fqn == OUTSIDE]
    small = max((row.flops or 0.0 for row in shown), default=0.0) < 1e8
    flop_unit, flop_factor = ("MFLOP", 1e-6) if small else ("GFLOP", 1e-9)
    columns = [
        Column(title="layer", left=True, least=12),
        Column(title="kind", left=True, give_up=2),
        Column(title="forward"),
        Column(title="backward"),
        Column(title="share"),
        Column(title=flop_unit, give_up=1),
    ]
    cells = [_layer_cells(row, style, flop_factor) for row in shown]
    head, *body = table_lines(columns, cells, style)
    count = f"{len(windows)} sampled step{'' if len(windows) == 1 else 's'}"
    num_ranks = len({window.rank for window in windows})
    count += f" on {num_ranks} ranks" if num_ranks > 1 else ""
    step = format_seconds(_mean(window.step_s for window in windows))
    lines = [style.paint(head, "bold"), *body]
    if (said := recompute_text(windows)) is not None:
        lines += wrap_text(said, style, hang="  ")
    foot = (
        f"means over {count}; share: of their mean step, {step}; {flop_unit}: one "
        "micro-batch, both passes; n/a: not seen"
    )
    lines += [style.paint(line, "dim") for line in wrap_text(foot, style, hang="  ")]
    return "\n".join(lines)


def recompute_text(windows: tuple[ProfileWindow, ...]) -> str | None:
    """What activation checkpointing costs in a mean step; ``None`` where nothing ran again."""
    told = [w for w in windows if any(t.recompute_s for t in w.layers)]
    if not told:
        return None
    again = [sum(t.recompute_s or 0.0 for t in w.layers) for w in told]
    forward = [sum(t.forward_s for t in w.layers if t.recompute_s) for w in told]
    whole = [
        sum(t.forward_s + (t.backward_s or 0.0) + (t.recompute_s or 0.0) for t in w.layers)
        for w in told
    ]
    share = sum(again) / sum(whole)
    said = (
        f"run again in the backward (activation checkpointing): {format_seconds(_mean(again))}, "
        f"{format_fraction(share)} of the layers' time"
    )
    if sum(again) > _TWICE * sum(forward) > 0:
        times = sum(again) / sum(forward)
        said += f"; {times:.1f} times the forward of these layers: is it applied twice?"
    return said


def _layer_cells(row: LayerRow, style: Style, flop_factor: float) -> list[str]:
    return [
        safe_text(row.fqn, style),
        "" if row.kind == "" else safe_text(row.kind or "n/a", style, 40),
        format_seconds(row.forward_s),
        format_seconds(row.backward_s),
        format_fraction(row.share_fraction),
        _flop_text(row.flops, flop_factor),
    ]


def _flop_text(flops: float | None, factor: float) -> str:
    if not flops:
        return "n/a"
    scaled = flops * factor
    if scaled < 0.001:
        return "<0.001"
    return f"{scaled:,.0f}" if scaled >= 99.5 else f"{scaled:.2g}"


def _sum_row(rows: list[LayerRow]) -> LayerRow:
    """One row for many, so that the column still adds up."""

    def total(values: Iterable[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return sum(known) if known else None

    return LayerRow(
        fqn=f"({len(rows)} more)",
        kind="",
        forward_s=total(r.forward_s for r in rows),
        backward_s=total(r.backward_s for r in rows),
        share_fraction=total(r.share_fraction for r in rows),
        flops=total(r.flops for r in rows),
        num_calls=None,
    )


def comm_rows(windows: tuple[ProfileWindow, ...]) -> tuple[CommRow, ...]:
    """Collectives by kind and size, the longest first."""
    calls: dict[str, list[list[CommEvent]]] = defaultdict(list)
    for (_, kind, _), events in same_collectives(windows).items():
        calls[kind].append(events)
    num_seen = sum(1 for window in windows if window.comm)  # not every window records them
    rows = [_comm_row(same, num_seen) for same in calls.values()]
    return tuple(sorted(rows, key=lambda r: -r.duration_s * r.calls_per_step))


def _comm_row(calls: list[list[CommEvent]], num_seen: int) -> CommRow:
    """One row; each of ``calls`` holds one collective's events on all ranks."""
    shared = [events for events in calls if len(events) > 1]
    group = [event for events in calls for event in events]
    timed = [event.duration_s for events in shared or calls for event in events]
    duration_s = sum(timed) / len(timed)
    least_s = sum(min(e.duration_s for e in events) * len(events) for events in shared)
    transfer_s = least_s / len(timed) if shared else None
    first = group[0]
    return CommRow(
        op=first.op,
        group_size=first.group_size,
        crosses_nodes=first.crosses_nodes,
        num_bytes=first.num_bytes,
        calls_per_step=len(group) / num_seen,
        duration_s=duration_s,
        transfer_s=transfer_s,
        waiting_s=None if transfer_s is None else max(0.0, duration_s - transfer_s),
        exposed_s=_mean(e.exposed_s for e in group),
    )


def render_comm(
    windows: tuple[ProfileWindow, ...],
    *,
    width: int = 96,
    unicode: bool = True,
    color: bool = False,
) -> str:
    """Table of collectives, then that of DDP's buckets."""
    style = Style(width=width, unicode=unicode, color=color)
    lines: list[str] = []
    rows = comm_rows(windows)
    if rows:
        columns = [
            Column(title="collective", left=True, least=10),
            Column(title="ranks"),
            Column(title="nodes", left=True, give_up=2),
            Column(title="size"),
            Column(title="a step"),
            Column(title="time"),
            Column(title="transfer"),
            Column(title="waiting"),
        ]
        cells = [
            [
                safe_text(row.op, style, 40),
                str(row.group_size),
                "between" if row.crosses_nodes else "inside",
                format_bytes(row.num_bytes),
                f"{row.calls_per_step:.3g}",
                format_seconds(row.duration_s),
                format_seconds(row.transfer_s),
                format_seconds(row.waiting_s),
            ]
            for row in rows
        ]
        foot = (
            "means over calls in profiled steps; a step: calls; "
            "time = transfer (least over ranks) + waiting for others"
        )
        if any(row.exposed_s is not None for row in rows):
            columns.append(Column(title="exposed", give_up=1))
            for line, row in zip(cells, rows, strict=True):
                line.append(format_seconds(row.exposed_s))
        lines += [*table_lines(columns, cells, style), *wrap_text(foot, style, hang="  ")]
    lines += _bucket_lines(windows, style)
    return "\n".join(lines) or "no communication was measured in this run"


def _bucket_lines(windows: tuple[ProfileWindow, ...], style: Style) -> list[str]:
    last = next((window for window in reversed(windows) if window.buckets), None)
    if last is None:
        return []
    columns = [Column(title=t) for t in ("bucket", "size", "ready after", "all-reduce")]
    cells = [
        [
            str(index),
            format_bytes(bucket.num_bytes),
            format_seconds(bucket.ready_s),
            format_seconds(bucket.duration_s),
        ]
        for index, bucket in enumerate(last.buckets)
    ]
    foot = (
        f"ready after: since the backward began; all-reduce: with waiting for others; "
        f"step {last.step}, rank {last.rank}"
    )
    return [*table_lines(columns, cells, style), *wrap_text(foot, style, hang="  ")]
