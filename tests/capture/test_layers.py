"""Layer times and the layer graph of one sampled step, over the whole module zoo."""

import copy
import gc
import io
import math
import threading
import weakref
from collections import Counter
from typing import Any

import pytest
import torch
import zoo
from loops import SlowNet, VirtualTime
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from scaledl.capture.flops import attention_flops
from scaledl.capture.inert import Hook
from scaledl.capture.modules import MAX_LAYERS, OUTSIDE, LayerTimes, LayerWindow
from scaledl.capture.names import canonical, leaves, modules, unwrap
from scaledl.capture.root import RootSensor
from scaledl.capture.tensors import batch_size_of, num_bytes_of, tensors_in
from scaledl.capture.timers import HostTimer
from scaledl.records import LayerGraph, LayerTiming


class _Silent:
    def on_forward_begin(self, start_s: float, training: bool) -> None: ...
    def on_forward(self, start_s: float, end_s: float, training: bool, with_grad: bool) -> None: ...
    def on_backward(self, compute_s: float, exposed_s: float) -> None: ...


def _raise(error: Exception) -> None:
    raise error


class Sampled:
    """A window around one model, attached inside the ``with``."""

    def __init__(self, model: nn.Module, *, clock: Any = None, part: int = 0) -> None:
        timer = HostTimer(clock) if clock is not None else HostTimer()
        self.root = RootSensor(model, _Silent(), timer.mark, _raise)
        self.root.start()
        self.window = LayerWindow(model, self.root, timer, _raise, part=part)

    def __enter__(self) -> "Sampled":
        self.window.attach()
        return self

    def __exit__(self, *exc: object) -> None:
        self.window.detach()
        self.root.stop()

    @property
    def times(self) -> LayerTimes:
        times = self.window.read()
        assert times is not None
        return times

    @property
    def graph(self) -> LayerGraph:
        assert self.window.graph is not None
        return self.window.graph

    @property
    def layers(self) -> dict[str, LayerTiming]:
        return {layer.fqn: layer for layer in self.times.layers}

    @property
    def edges(self) -> set[tuple[str, str]]:
        return {(edge.source, edge.target) for edge in self.graph.edges}


def sample(name: str) -> tuple[zoo.Case, Sampled, float]:
    """One sampled step of a case of the zoo."""
    case = zoo.make(name)
    with Sampled(case.model) as sampled:
        loss = case.step()
    return case, sampled, loss


def _leaf_calls(model: nn.Module, case: zoo.Case) -> Counter[str]:
    """Calls of each leaf in one forward, counted by hooks of our own."""
    seen: Counter[str] = Counter()
    handles = []
    for fqn, module in leaves(unwrap(model)):

        def count(*args: Any, fqn: str = fqn) -> None:
            seen[fqn] += 1

        handles.append(module.register_forward_pre_hook(count))
    case.loss(model, case.batch())
    for handle in handles:
        handle.remove()
    return seen


# --- over the whole zoo --------------------------------------------------------------------------


@pytest.mark.parametrize("name", zoo.EVERY)
def test_training_is_bit_equal_with_and_without_a_window(name: str):
    plain = zoo.make(name)
    expected = plain.step()
    case, _, loss = sample(name)
    assert loss == expected
    for (key, one), two in zip(
        plain.model.state_dict().items(), case.model.state_dict().values(), strict=True
    ):
        assert torch.equal(one, two), key
    following = []
    for one in (plain, case):
        torch.manual_seed(1)
        following.append(one.step())
    assert following[0] == following[1]


@pytest.mark.parametrize("name", [name for name in zoo.EVERY if name != "wide"])
def test_every_leaf_that_ran_has_its_calls_and_both_times(name: str):
    case, sampled, _ = sample(name)
    fresh = zoo.make(name)
    expected = _leaf_calls(fresh.model, fresh)
    layers = sampled.layers
    attention = {node.fqn for node in sampled.graph.nodes if node.kind == "attention"}
    assert set(expected) <= set(layers)
    outer = {name for name, _ in modules(case.model)}  # what they do themselves
    assert set(layers) - set(expected) <= attention | outer
    for fqn, calls in expected.items():
        layer = layers[fqn]
        assert layer.num_calls == calls
        assert layer.forward_s >= 0.0
        assert layer.backward_s is not None
        assert layer.backward_s >= 0.0


@pytest.mark.parametrize("name", zoo.EVERY)
def test_P21_layers_and_what_is_outside_make_the_whole(name: str):
    times = sample(name)[1].times
    known_s = sum(layer.forward_s for layer in times.layers)
    assert known_s + times.outside_forward_s == pytest.approx(times.forward_s, rel=0.02)
    known_s = sum(layer.backward_s or 0.0 for layer in times.layers)
    assert times.outside_backward_s is not None
    assert known_s + times.outside_backward_s == pytest.approx(times.backward_s, rel=0.02)


@pytest.mark.parametrize("name", zoo.EVERY)
def test_edges_join_nodes_and_only_true_inputs_have_no_source(name: str):
    case, sampled, _ = sample(name)
    if name == "wide":
        assert sampled.window.is_partial
        return
    nodes = [node.fqn for node in sampled.graph.nodes]
    assert len(nodes) == len(set(nodes))
    assert {fqn for edge in sampled.edges for fqn in edge} <= set(nodes)
    assert all(source != target for source, target in sampled.edges)
    fed = {target for _, target in sampled.edges}
    assert OUTSIDE in fed, "the output comes from somewhere"
    calls = _leaf_calls(case.model, case)
    roots = {fqn for fqn in calls if fqn not in fed}
    assert len(roots) <= 4, roots


@pytest.mark.parametrize("name", [name for name in zoo.EVERY if name != "wide"])
def test_parameters_are_counted_once(name: str):
    case, sampled, _ = sample(name)
    total = sum(p.numel() for p in case.model.parameters())
    assert sum(node.params for node in sampled.graph.nodes) == total
    assert sum(node.param_bytes for node in sampled.graph.nodes) == 4 * total


@pytest.mark.parametrize("name", [*zoo.EVERY, *zoo.COMPILED])
def test_H06_nothing_stays_on_the_modules(name: str):
    case = zoo.make(name)
    before = _traces(case.model)
    with Sampled(case.model):
        during = list(case.model.state_dict())
        case.step()
    assert during == before[0]
    assert _traces(case.model) == before


def _traces(model: nn.Module) -> Any:
    tables = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    extra = ("_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs")
    return (
        list(model.state_dict()),
        [name for name, _ in model.named_buffers()],
        repr(model),
        [sorted(vars(module)) for module in model.modules()],
        [[len(getattr(m, t, ())) for t in (*tables, *extra)] for m in model.modules()],
        [p._backward_hooks for p in model.parameters()],
    )


# --- attention and FLOPs -------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*zoo.TRANSFORMERS, "written_out"])
def test_every_functional_attention_is_one_node_between_layers(name: str):
    _, sampled, _ = sample(name)
    attention = [node for node in sampled.graph.nodes if node.kind == "attention"]
    assert len(attention) == zoo.ATTENTION_CALLS.get(name, 1)
    layers = sampled.layers
    for node in attention:
        assert node.flops_forward > 0
        assert node.params == 0
        sources = {source for source, target in sampled.edges if target == node.fqn}
        assert len(sources) >= 3 or name.startswith("gpt2"), "queries, keys and values"
        assert any(source == node.fqn for source, _ in sampled.edges)
        assert layers[node.fqn].num_calls == 1
        assert layers[node.fqn].backward_s >= 0.0


def _counted_flops(name: str) -> tuple[float, bool]:
    """torch's own count of one forward, and whether it knew the attention."""
    case = zoo.make(name)
    with FlopCounterMode(display=False) as counter:
        case.loss(case.model, case.batch())
    operators = {str(op) for op in counter.get_flop_counts()["Global"]}
    products = [op for op in operators if "bmm" in op or "dot_product" in op]
    return float(counter.get_total_flops()), bool(products)


@pytest.mark.parametrize("name", [*zoo.TRANSFORMERS, "resnet"])
def test_forward_flops_of_products_match_torchs_counter(name: str):
    _, sampled, _ = sample(name)
    kinds = {"linear", "convolution", "attention"}
    products = [node for node in sampled.graph.nodes if node.kind in kinds]
    ours = sum(node.flops_forward for node in products)
    counted, knows_attention = _counted_flops(name)
    if not knows_attention:  # the fused kernel of the CPU is not in torch's table
        counted += sum(node.flops_forward for node in products if node.kind == "attention")
    assert ours == pytest.approx(counted, rel=0.02)


@pytest.mark.parametrize("name", ["bert", "vit", "gpt2", "deit"])
def test_fused_attention_has_the_flops_of_the_formula(name: str):
    _, sampled, _ = sample(name)
    length = 17 if name == "vit" else 18 if name == "deit" else zoo.LENGTH
    expected = 4.0 * 2 * length**2 * zoo.HIDDEN
    found = [node.flops_forward for node in sampled.graph.nodes if node.kind == "attention"]
    assert found == pytest.approx([expected] * zoo.LAYERS)


def test_written_out_attention_has_the_same_flops_as_the_fused_one():
    _, sampled, _ = sample("written_out")
    (node,) = [node for node in sampled.graph.nodes if node.kind == "attention"]
    assert node.flops_forward == 4.0 * 4 * 5**2 * zoo.WIDTH


def test_attention_flops_follow_both_products():
    # Q K^T: 2 rows cols depth, P V: 2 rows cols width
    assert attention_flops((2, 3, 5, 7), (2, 3, 11, 7), 13) == 2.0 * 2 * 3 * 5 * 11 * (7 + 13)


def test_backward_flops_are_twice_the_forwards_where_input_and_weight_need_gradients():
    nodes = {node.fqn: node for node in sample("branches")[1].graph.nodes}
    assert nodes["left"].flops_backward == 2 * nodes["left"].flops_forward > 0
    assert nodes["stem"].flops_backward == nodes["stem"].flops_forward, "no gradient of the data"
    nodes = {node.fqn: node for node in sample("frozen")[1].graph.nodes}
    assert nodes["prefix.0"].flops_backward == 0
    assert nodes["prefix.0"].flops_forward > 0


def test_edges_of_a_small_net_are_the_known_ones():
    assert sample("branches")[1].edges == {
        ("stem", "left"),
        ("stem", "right"),
        ("stem", "join"),
        ("left", "join"),
        ("right", "join"),
        ("join", OUTSIDE),
    }


def test_edges_of_attention_run_through_its_node():
    edges = sample("written_out")[1].edges
    assert {("q", "attention"), ("k", "attention"), ("v", "attention")} <= edges
    assert ("attention", "out") in edges
    assert not {("q", "out"), ("k", "out"), ("v", "out")} & edges


def test_edges_of_a_frozen_prefix_are_found_without_gradients():
    edges = sample("frozen")[1].edges
    assert {("prefix.0", "prefix.1"), ("prefix.1", "prefix.2"), ("prefix.2", "head.0")} <= edges


def test_another_tensor_at_an_old_address_makes_no_edge():
    class Reuse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Identity()
            self.two = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(50):
                address = id(self.one(torch.ones(4)))
                other = torch.zeros(4)
                if id(other) == address:
                    return self.two(other)
            return self.two(torch.zeros(4))

    model = Reuse()
    with Sampled(model) as sampled:
        model(torch.ones(4)).sum().backward()
    assert ("one", "two") not in sampled.edges


def test_signature_tells_architectures_apart_and_not_runs():
    one, two = (sample("branches")[1].graph.signature for _ in range(2))
    assert one == two
    assert one != sample("twice")[1].graph.signature


# --- exact times, on a clock that only the layers move --------------------------------------------


def test_times_are_those_that_the_layers_spend():
    time = VirtualTime()

    class Slow(nn.Module):
        def __init__(self, forward_s: float, backward_s: float) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))
            self.forward_s, self.backward_s = forward_s, backward_s

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return _Spending.apply(x * self.weight, time, self.forward_s, self.backward_s)

    model = nn.Sequential(Slow(1.0, 10.0), nn.Identity(), Slow(2.0, 20.0), nn.Dropout(0.0))
    with Sampled(model, clock=time) as sampled:
        for _ in range(2):  # two micro-batches in one step
            loss = model(torch.ones(3)).sum()
            time.spend(100.0)
            loss.backward()
            time.spend(1000.0)
    layers = sampled.layers
    assert [layers[n].forward_s for n in "0123"] == [2.0, 0.0, 4.0, 0.0]
    assert [layers[n].backward_s for n in "0123"] == [20.0, 0.0, 40.0, 0.0]
    assert [layers[n].num_calls for n in "0123"] == [2, 2, 2, 2]
    times = sampled.times
    assert (times.forward_s, times.backward_s) == (6.0, 60.0)
    assert (times.outside_forward_s, times.outside_backward_s) == (0.0, 0.0)


class _Spending(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, time: Any, forward_s: float, backward_s: float):
        ctx.time, ctx.backward_s = time, backward_s
        time.spend(forward_s)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor):
        ctx.time.spend(ctx.backward_s)
        return grad, None, None, None


def test_functional_work_is_booked_to_the_module_that_calls_it():
    time = VirtualTime()
    model = nn.Sequential(SlowNet(time), nn.Linear(3, 3))  # the first spends 2 s and 4 s itself
    with Sampled(model, clock=time) as sampled:
        for _ in range(2):
            loss = model(torch.ones(2, 3)).sum()
            time.spend(100.0)
            loss.backward()
    layers, times = sampled.layers, sampled.times
    assert (layers["0"].forward_s, layers["0"].backward_s) == (4.0, 8.0)
    assert layers["0"].num_calls == 2
    assert layers["0.layers.0"].forward_s == layers["1"].backward_s == 0.0
    assert (times.outside_forward_s, times.outside_backward_s) == (0.0, 0.0)
    assert (times.forward_s, times.backward_s) == (4.0, 8.0)


def test_functional_work_after_the_last_layer_is_booked_too():
    time = VirtualTime()
    model = nn.Sequential(nn.Linear(3, 3), SlowNet(time))
    with Sampled(model, clock=time) as sampled:
        model(torch.ones(2, 3)).sum().backward()
    assert (sampled.layers["1"].forward_s, sampled.layers["1"].backward_s) == (2.0, 4.0)
    assert sampled.times.outside_backward_s == 0.0


def test_model_that_is_one_layer_or_functional_is_timed_as_a_whole():
    time = VirtualTime()
    model = SlowNet(time)
    with Sampled(model, clock=time) as sampled:
        model(torch.ones(2, 3)).sum().backward()
    times = sampled.times
    assert sampled.layers["SlowNet"].forward_s == 2.0
    assert (times.outside_forward_s, times.outside_backward_s) == (0.0, 4.0)
    assert sampled.layers["layers.0"].forward_s == 0.0


def test_no_forward_is_no_times():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with Sampled(model) as sampled:
        pass
    assert sampled.window.read() is None
    assert sampled.window.is_ready()


def test_forward_without_backward_leaves_the_backward_unknown():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with Sampled(model) as sampled:
        model(torch.ones(1, 2))
    assert [layer.backward_s for layer in sampled.times.layers] == [None, None]
    assert sampled.times.outside_backward_s is None


# --- hooks, one row each --------------------------------------------------------------------------


def test_H01_in_place_activations_and_residuals_run_under_a_window():
    case, sampled, loss = sample("residual")
    assert math.isfinite(loss)
    assert all(not m._backward_hooks and not m._backward_pre_hooks for m in case.model.modules())
    assert {"0.first", "0.act", "0.second"} <= set(sampled.layers)


def test_H03_a_hook_of_ours_never_replaces_an_output():
    layer = nn.Linear(2, 2)
    expected = layer(torch.ones(2))
    before = layer.register_forward_pre_hook(Hook(lambda *a: 5.0))
    after = layer.register_forward_hook(Hook(lambda *a: 5.0))
    assert torch.equal(layer(torch.ones(2)), expected)
    before.remove()
    after.remove()


def test_H05_a_second_set_of_hooks_goes_without_the_first_or_the_users():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    calls: list[int] = []
    handle = model[0].register_forward_hook(lambda *a: calls.append(1))
    before = _traces(model)
    with Sampled(model) as outer:
        during = _traces(model)
        with Sampled(model) as inner:
            model(torch.ones(1, 2)).sum().backward()
        assert _traces(model) == during
        model(torch.ones(1, 2)).sum().backward()
    assert _traces(model) == before
    assert [inner.layers[n].num_calls for n in "01"] == [1, 1]
    assert [outer.layers[n].num_calls for n in "01"] == [2, 2]
    model(torch.ones(1, 2))
    assert calls == [1, 1, 1]
    handle.remove()


def test_H07_model_is_saved_inside_the_window_and_loads_silent():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with Sampled(model) as sampled:
        buffer = io.BytesIO()
        torch.save(model, buffer)
        model(torch.ones(1, 2)).sum().backward()
        calls = len(sampled.window._forward)
        buffer.seek(0)
        loaded = torch.load(buffer, weights_only=False)
        assert torch.equal(loaded(torch.ones(1, 2)), model(torch.ones(1, 2)))
        assert len(sampled.window._forward) == 2 * calls, "only the original reports"
    assert b"scaledl" not in buffer.getvalue()


def test_H08_a_deep_copy_does_not_report():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with Sampled(model) as sampled:
        average = copy.deepcopy(model)
        average(torch.ones(1, 2)).sum().backward()
        assert sampled.window._forward == []
        assert sampled.window._marks.forward == []
        model(torch.ones(1, 2)).sum().backward()
    assert len(sampled.times.layers) == 2
    assert torch.equal(average(torch.ones(1, 2)), model(torch.ones(1, 2)))


def test_H09_H10_compiled_child_is_one_node_and_breaks_no_graph():
    from torch._dynamo import utils as dynamo

    counts = []
    for watch in (False, True):
        torch._dynamo.reset()
        dynamo.counters.clear()
        case = zoo.make("compiled_child")
        if watch:
            with Sampled(case.model) as sampled:  # attached before the first, compiling call
                case.step()
        else:
            case.step()
        case.step()
        counts.append((dict(dynamo.counters["stats"]), dict(dynamo.counters["graph_break"])))
    assert counts[0] == counts[1]
    layers = sampled.layers
    assert set(layers) == {"first", "child", "last", type(case.model).__name__}
    assert layers["child"].backward_s > 0.0
    assert {("first", "child"), ("child", "last")} <= sampled.edges
    assert {n.fqn: n.kind for n in sampled.graph.nodes}["child"] == "compiled"


@pytest.mark.parametrize("how", ["torch.compile", "in place", "fullgraph"])
def test_H10_compiled_model_has_the_same_graphs_under_root_and_window(how: str):
    from torch._dynamo import utils as dynamo

    counts, losses = [], []
    for watch in (False, True):
        torch._dynamo.reset()
        dynamo.counters.clear()
        torch.manual_seed(5)
        model: Any = zoo.CalledTwice()
        if how == "in place":
            model.compile(backend="aot_eager")
        else:
            model = torch.compile(model, backend="aot_eager", fullgraph=how == "fullgraph")
        sampled = Sampled(model) if watch else None
        for rows in (2, 2, 3, 5):
            if sampled is not None and rows == 3:  # a window over a recompilation
                sampled.window.attach()
            loss = model(torch.ones(rows, zoo.WIDTH)).sum()
            loss.backward()
            losses.append(loss.item())
        if sampled is not None:
            sampled.__exit__()
            times = sampled.window.read()
            assert times is None or all(t.forward_s > 0 for t in times.layers), "no silent zeros"
        counts.append((dict(dynamo.counters["stats"]), dict(dynamo.counters["graph_break"])))
    assert counts[0] == counts[1]
    assert losses[:4] == losses[4:]


def test_H11_no_dispatch_mode_is_ever_pushed():
    from torch.utils._python_dispatch import _get_current_dispatch_mode

    depths = []

    class Look(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            depths.append(_get_current_dispatch_mode())
            return x * 2

    model = nn.Sequential(nn.Linear(2, 2), Look())
    with Sampled(model):
        model(torch.ones(1, 2)).sum().backward()
    assert depths == [None]


def test_H14_two_threads_through_one_hooked_module_keep_their_own_times():
    layer = nn.Linear(2, 2)
    model = nn.Sequential(layer, nn.ReLU())
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(300):
                layer(torch.ones(1, 2))
        except BaseException as error:
            errors.append(error)

    with Sampled(model) as sampled:
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(sampled.window._forward) == 600
        assert all(last >= first for _, first, last in sampled.window._forward)
        assert sampled.window._open == {}
    assert errors == []


@pytest.mark.parametrize(
    ("wrapped", "name"),
    [
        ("_fsdp_wrapped_module.layer.0._fsdp_wrapped_module.q", "layer.0.q"),
        ("_orig_mod.head", "head"),
        ("block._checkpoint_wrapped_module.fc", "block.fc"),
        ("plain.name", "plain.name"),
    ],
)
def test_H15_names_are_the_users_own(wrapped: str, name: str):
    assert canonical(wrapped) == name


def test_H15_wrappers_are_looked_through():
    class DataLike(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(2, 2), nn.ReLU())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.body(x)

    model = DataLike()
    parallel, compiled = nn.DataParallel(model), torch.compile(model, backend="eager")
    assert unwrap(parallel) is unwrap(compiled) is model
    assert [fqn for fqn, _ in leaves(parallel)] == ["body.0", "body.1"]
    assert [fqn for fqn, _ in leaves(compiled)] == ["DataLike"], "one opaque region"


def test_H16_layers_that_no_hook_sees_are_absent_and_not_zero():
    case, sampled, _ = sample("bypass")
    assert set(sampled.layers) == {"seen", type(case.model).__name__}  # which did the hidden work
    assert {node.fqn for node in sampled.graph.nodes} == {"seen", OUTSIDE}
    assert "unused" not in sample("twice")[1].layers


def test_H17_inputs_by_keyword_are_seen():
    _, sampled, _ = sample("keywords")
    assert ("first.linear", "second.linear") in sampled.edges
    nodes = {node.fqn: node for node in sampled.graph.nodes}
    assert nodes["first.linear"].flops_forward == 4 * 8 * (2 * 8 + 1)


def test_H18_outputs_of_every_kind_are_sized_and_none_is_consumed():
    _, sampled, _ = sample("structured")
    nodes = {node.fqn: node for node in sampled.graph.nodes}
    assert nodes["mapping"].activation_bytes == 4 * 8 * 4
    assert nodes["record"].activation_bytes == 4 * 8 * 4
    assert nodes["nothing"].activation_bytes == 0
    assert nodes["stream"].activation_bytes == 0
    assert sampled.layers["last"].num_calls == 1


def test_H19_a_layer_that_runs_twice_has_two_calls():
    _, sampled, _ = sample("twice")
    assert sampled.layers["shared"].num_calls == 2
    nodes = {node.fqn: node for node in sampled.graph.nodes}
    assert nodes["shared"].flops_forward == 2 * 4 * 8 * (2 * 8 + 1)
    assert nodes["shared"].params == 8 * 8 + 8


def test_H22_batch_statistics_modes_and_random_state_are_untouched():
    results = []
    for watch in (False, True):
        case = zoo.make("resnet")
        if watch:
            with Sampled(case.model):
                case.step()
        else:
            case.step()
        buffers = [b.clone() for b in case.model.buffers()]
        modes = [m.training for m in case.model.modules()]
        results.append((buffers, modes, torch.get_rng_state()))
    assert all(torch.equal(a, b) for a, b in zip(results[0][0], results[1][0], strict=True))
    assert results[0][1] == results[1][1]
    assert torch.equal(results[0][2], results[1][2])


@pytest.mark.parametrize("name", ["checkpoint", "checkpoint_reentrant", "tied"])
def test_H23_shared_and_recomputed_layers_count_once_and_no_parameter_has_a_hook(name: str):
    case, sampled, _ = sample(name)
    assert {layer.num_calls for layer in sampled.times.layers} == {1}
    assert all(p._backward_hooks is None for p in case.model.parameters())
    assert all(not getattr(p, "_post_accumulate_grad_hooks", None) for p in case.model.parameters())


def test_tied_weight_belongs_to_the_layer_that_runs_first():
    nodes = {node.fqn: node for node in sample("tied")[1].graph.nodes}
    assert nodes["embed"].params == 16 * 8
    assert nodes["head"].params == 0


def test_scripted_child_is_passed_over_and_its_time_is_its_callers():
    case, sampled, _ = sample("scripted")
    assert set(sampled.layers) == {"first", "last", type(case.model).__name__}
    assert ("first", "last") in sampled.edges


def test_parametrised_layer_is_one_layer_of_its_kind():
    nodes = {node.fqn: node for node in sample("weight_norm")[1].graph.nodes}
    assert nodes["first"].kind == "linear"
    assert nodes["first"].params == 8 * 8 + 8 + 8


def test_scripted_root_is_left_alone():
    model = torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    with Sampled(model) as sampled:
        model(torch.ones(1, 2)).sum().backward()
    assert sampled.window.read() is None


def test_H21_very_many_leaves_are_timed_a_part_at_a_time():
    case = zoo.make("wide")
    seen: set[str] = set()
    for part in range(2):
        with Sampled(case.model, part=part) as sampled:
            case.step()
        layers = set(sampled.layers)
        assert len(layers) <= MAX_LAYERS
        assert not layers & seen
        seen |= layers
    assert len(seen) == 800


@pytest.mark.parametrize("name", ["bert", "resnet", "checkpoint", "lstm", "frozen"])
def test_window_keeps_no_graph_and_no_tensor_alive(name: str):
    case = zoo.make(name)
    watched: list[weakref.ref[torch.Tensor]] = []

    def look(module: nn.Module, args: Any, output: Any) -> None:
        watched.extend(weakref.ref(t) for t in tensors_in(output))

    handles = [m.register_forward_hook(look) for _, m in leaves(case.model)]
    with Sampled(case.model) as sampled:
        loss = case.loss(case.model, case.batch())
        loss.backward()
        del loss
    for handle in handles:
        handle.remove()
    case.model.zero_grad(set_to_none=True)
    assert sampled.window.graph is not None
    gc.collect()
    parameters = {id(p) for p in case.model.parameters()}
    alive = [r() for r in watched if r() is not None and id(r()) not in parameters]
    assert alive == []
    assert watched


def test_window_left_by_an_error_in_the_forward_is_clean():
    class Broken(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("user")

    model = nn.Sequential(nn.Linear(2, 2), Broken())
    before = _traces(model)
    with pytest.raises(ValueError, match="user"), Sampled(model) as sampled:
        model(torch.ones(1, 2))
    assert _traces(model) == before
    assert sampled.window._open == {}
    assert sampled.window.read() is None


def test_backward_that_raises_does_not_stop_later_ones_from_being_timed():
    time = VirtualTime()
    model = SlowNet(time)

    class Bomb(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            raise ValueError("user")

    with Sampled(model, clock=time) as sampled:
        x = torch.ones(2, 3, requires_grad=True)
        with pytest.raises(ValueError, match="user"):
            model(Bomb.apply(x)).sum().backward()
        model(x).sum().backward()
    assert sampled.times.backward_s == 4.0


def test_gradient_penalty_runs_under_a_window():
    case = zoo.make("branches")
    x = case.batch().requires_grad_()
    with Sampled(case.model) as sampled:
        loss = case.model(x).square().mean()
        (grad,) = torch.autograd.grad(loss, x, create_graph=True)
        (loss + grad.square().sum()).backward()
    assert all(layer.backward_s >= 0 for layer in sampled.times.layers)
    assert sampled.times.backward_s > 0


# --- tensors inside structures --------------------------------------------------------------------


def test_tensors_are_found_in_nested_structures_and_strangers_left_alone():
    a, b = torch.ones(3), torch.ones(2, 2, dtype=torch.float16)
    nested = {"x": [a, None, "text", 3], "y": (zoo.Output(loss=None, hidden=b),)}
    assert [id(t) for t in tensors_in(nested)] == [id(a), id(b)]
    assert num_bytes_of(nested) == 12 + 8
    stream = iter([a])
    assert list(tensors_in(stream)) == []
    assert next(stream) is a
    assert len(list(tensors_in([a] * 10, limit=4))) == 4


def test_batch_size_is_the_first_axis_of_the_first_tensor_that_has_one():
    assert batch_size_of({"id": torch.tensor(1), "x": torch.ones(7, 2)}) == 7
    assert batch_size_of("text") is None
    assert batch_size_of([torch.tensor(3.0)]) is None


def test_self_referencing_structure_ends():
    loop: list[Any] = [torch.ones(1)]
    loop.append(loop)
    assert len(list(tensors_in(loop))) >= 1
