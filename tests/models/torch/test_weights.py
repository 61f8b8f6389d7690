"""torch.compile and weights: whatever happens to them, and whichever module calls, results are those of PyTorch."""

import gc
import random
import threading
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an optional extra: pip install 'roller[torch]'")
pytest.importorskip("onnxscript", reason="torch.onnx.export needs onnxscript: pip install 'roller[torch]'")

from roller.models.torch import backend, prepacked_weights, tensor_addresses  # noqa: E402
from roller.models.torch.backend import roller_backend  # noqa: E402
from tests.models.torch import modules  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

OPTIONS = {"progress": False, "top_k": 1, "deterministic": True}


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    # Modules whose strides, or whose tied weights, were changed are further graphs of the same code.
    with torch._dynamo.config.patch(recompile_limit=64, accumulated_recompile_limit=1024):
        yield
    torch._dynamo.reset()


def fast(model, **options):
    return torch.compile(model, backend=roller_backend, dynamic=False, options={**OPTIONS, **options})


def test_two_modules_of_a_class_have_their_own_results_and_no_write_is_missed():
    rng = modules.seeded(0)
    one, other = (modules.make(modules.Line, rng) for _ in range(2))
    pairs = [(fast(m), m) for m in (one, other)]
    for change in (lambda *_: None, *modules.UNCOUNTED, modules.load, modules.swap, modules.assign):
        for run, module in pairs:
            modules.check(run, module, torch.randn(4, modules.WIDTH))
        change(one, rng)


@pytest.mark.slow
@pytest.mark.parametrize("freeze", [False, True], ids=["arguments", "packed"])
@pytest.mark.parametrize("kind", modules.KINDS, ids=lambda kind: kind.__name__)
def test_random_lives_of_pairs_of_modules(kind, freeze):
    changes = modules.COUNTED if freeze else modules.COUNTED + modules.UNCOUNTED
    for seed in range(4 if freeze else 40):
        modules.live(kind, modules.seeded(seed), lambda m: fast(m, freeze=freeze), changes)


@pytest.mark.slow
def test_blocks_compiled_one_by_one_and_functions_of_what_modules_hold():
    rng = modules.seeded(1)
    net = torch.nn.Sequential(*(modules.make(modules.Line, rng) for _ in range(3)))
    plain = modules.copy.deepcopy(net)
    for block in net:
        block.compile(backend=roller_backend, dynamic=False, options=OPTIONS)
    modules.check(net, plain, torch.randn(4, modules.WIDTH))

    def of_weight(weight):
        return lambda x: x @ weight

    def of_module(module):
        return lambda x: module(x) + 1

    def of_layers(layers):
        return lambda x: sum(x @ layer.line.weight for layer in layers)

    weights = [torch.nn.Parameter(torch.randn(modules.WIDTH, modules.WIDTH)) for _ in range(2)]
    blocks = list(plain)
    for function in (*map(of_weight, weights), *map(of_module, blocks), of_layers(blocks[:2]), of_layers(blocks[1:])):
        run = fast(function)
        modules.check(run, function, torch.randn(4, modules.WIDTH))
        weights[0].data.add_(1)
        blocks[1].line.weight.data.mul_(2)
        modules.check(run, function, torch.randn(4, modules.WIDTH))


@pytest.mark.slow
@pytest.mark.parametrize("freeze", [False, True], ids=["arguments", "packed"])
def test_modules_of_a_class_called_by_threads(freeze):
    pairs = [(fast(m, freeze=freeze), m) for m in (modules.make(modules.Own, modules.seeded(n)) for n in range(4))]
    failures, done = [], []

    def call(number):
        rng = random.Random(number)
        try:
            for _ in range(30):
                modules.check(*rng.choice(pairs), torch.randn(4, modules.WIDTH))
            done.append(number)
        except Exception as err:  # noqa: BLE001 - the main thread judges it
            failures.append(err)

    modules.check(*pairs[0], torch.randn(4, modules.WIDTH))
    threads = [threading.Thread(target=call, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and sorted(done) == [0, 1, 2]


def graphs_of(run_all):
    """Return what the backend made of every graph that is compiled meanwhile."""
    made = []

    def spy(graph, examples, **options):
        made.append(roller_backend(graph, examples, **options))
        return made[-1]

    run_all(lambda m, **options: torch.compile(m, backend=spy, dynamic=False, options={**OPTIONS, **options}))
    return made


@pytest.mark.slow
def test_frozen_weights_are_packed_once_per_module_and_forgotten_with_it(monkeypatch):
    pack, packs = backend._compile_to_graph_call, []
    monkeypatch.setattr(backend, "_compile_to_graph_call", lambda *a: packs.append(len(a[2])) or pack(*a))
    ones = [modules.make(modules.Own, modules.seeded(n)) for n in range(3)]

    def run_all(compiled):
        for _ in range(2):
            for module in ones:
                modules.check(compiled(module, freeze=True), module, torch.randn(4, modules.WIDTH))

    (graph,) = graphs_of(run_all)
    assert packs == [2, 2, 2] and len(graph._sets) == 3
    (run,) = {s.run for key, s in graph._sets.items() if key[0] in map(id, ones[0].parameters())}
    assert len(run.session.inputs) == 1, "weights are no inputs"
    del run
    ones.pop()
    gc.collect()
    assert len(graph._sets) == 2


@pytest.mark.slow
def test_frozen_weights_that_keep_changing_are_arguments(monkeypatch):
    monkeypatch.setattr(prepacked_weights, "MOST_PACKS", 2)
    module, rng = modules.make(modules.Own, modules.seeded(0)), modules.seeded(1)

    def run_all(compiled):
        run = compiled(module, freeze=True)
        for _ in range(4):
            modules.check(run, module, torch.randn(4, modules.WIDTH))
            modules.descend(module, rng)

    (graph,) = graphs_of(run_all)
    (found,) = graph._sets.values()
    assert found.state is None and len(found.run.session.inputs) == 3


def test_results_that_share_memory_with_something_stay_with_pytorch():
    weight = torch.nn.Parameter(torch.randn(4, 4))

    def shared(x):
        h = x + 1
        v = h.view(-1)
        torch._dynamo.graph_break()
        v.add_(1)
        return h

    def of_argument(x):
        return x.view(-1)[1:]

    def of_weight(x):
        return x @ weight, weight.T

    with torch.no_grad(), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        x = torch.randn(4, 4)
        torch.testing.assert_close(fast(shared)(x), shared(x))
        fast(of_argument)(x).zero_()
        assert (x.view(-1)[1:] == 0).all()
        assert fast(of_weight)(x)[1].data_ptr() == weight.data_ptr()
    texts = "\n".join(str(t.message) for t in told)
    assert "results 'h' and 'v' share memory" in texts and texts.count("is a view of an argument") >= 2


def test_what_a_graph_holds_itself_is_looked_up_in_every_call():
    """Graphs of older releases of Dynamo call the user's modules, as those of torch.fx do."""

    class Pair(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.line = torch.nn.Linear(8, 8)

        def forward(self, x):
            return (self.line(x), self.line.weight @ x.T)

    module = Pair().eval()
    with torch.no_grad():
        run = roller_backend(torch.fx.symbolic_trace(module), [torch.randn(4, 8)], OPTIONS)
        for change in (modules.data_write, modules.no_grad_write, modules.swap):
            x = torch.randn(4, 8)
            torch.testing.assert_close(run(x), module(x))
            change(module, random.Random(0))


def test_arguments_of_releases_that_are_not_understood(monkeypatch):
    tensor_addresses.torch_functions_and_offsets.cache_clear()
    monkeypatch.setattr(tensor_addresses, "_PREFIX", "missing_")
    with pytest.raises(LookupError, match="missing_data_ptr"):
        tensor_addresses.torch_functions_and_offsets()
    module = modules.make(modules.Own, modules.seeded(0))
    run = fast(module)
    modules.check(run, module, torch.randn(4, modules.WIDTH))
    module.weight.data.mul_(2)
    modules.check(run, module, torch.randn(4, modules.WIDTH))
    tensor_addresses.torch_functions_and_offsets.cache_clear()


def test_places_are_those_of_tensors_that_can_be_read_where_they_are():
    def found(tensor, shape=(2, 3), dtype="float32"):
        wanted = tensor_addresses.TensorAddresses([tensor_addresses.ExpectedTensor(1, shape, np.dtype(dtype))])
        addresses = np.zeros(1, np.uint64)
        number = wanted.write_addresses((None, tensor), addresses.ctypes.data)
        assert number in (0, tensor_addresses.ALL)
        return int(addresses[0]) if number == tensor_addresses.ALL else None

    plain, wide = torch.randn(2, 3), torch.randn(4, 6)
    assert found(plain) == plain.data_ptr() and found(torch.nn.Parameter(plain)) == plain.data_ptr()
    assert found(wide.view(8, 3)[2:4]) == wide.data_ptr() + 24
    assert found(wide[:2, :1], (2, 1)) is None and found(wide[:1, :3], (1, 3)) == wide.data_ptr()
    assert found(torch.tensor(3), (), "int64") is not None and found(torch.tensor(True), (), "bool") is not None
    for other in (plain.T, wide[:2, :3], plain.double(), plain[0], plain.view(3, 2), torch.randn(2, 3, device="meta")):
        assert found(other) is None
    raw = torch.zeros(25, dtype=torch.uint8)[1:]
    assert found(torch.frombuffer(raw.numpy(), dtype=torch.float32).view(2, 3)) is None, "misaligned"
    assert found("no tensor") is None and found(np.zeros((2, 3), np.float32)) is None


def test_packed_graphs_say_whether_results_differed():
    first = type("First", (), {"differs": False, "__call__": lambda self, *_: (torch.ones(1),)})()
    graph, weight = prepacked_weights.FrozenGraph([0], lambda _: first), torch.ones(2)
    assert not graph.differs
    graph(weight)
    assert not graph.differs
    first.differs = True
    assert graph.differs
