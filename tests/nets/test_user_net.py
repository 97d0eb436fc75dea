"""A user's own network: loaded as body and head, or refused with a reason."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest
import torch

from crossward import nets
from crossward.core.net import Net
from crossward.errors import ConfigError
from crossward.nets.user_net import CONTRACT_HINT, load_user_net

IMPORTS = (
    "import torch\nfrom torch import nn\nfrom crossward.errors import ConfigError\nfrom crossward.core.net import Net\n"
)
PLAIN = """
class Plain(nn.Module):
    def __init__(self, *, channels, classes, size, hidden=4):
        super().__init__()
        pooled = nn.AdaptiveAvgPool2d(1), nn.Flatten()
        self.features = nn.Sequential(nn.Conv2d(channels, hidden, 3), nn.BatchNorm2d(hidden), nn.ReLU(), *pooled)
        self.head = nn.Linear(hidden, classes)
        self.features[1].eval()

    def forward(self, x):
        return self.head(self.features(x))
"""
SIZES = {"channels": 3, "classes": 5, "size": 8}


@pytest.fixture
def module(tmp_path, monkeypatch) -> Iterator[Callable[[str], str]]:
    """A function that writes a module that can be imported, and returns its name."""
    monkeypatch.syspath_prepend(tmp_path)
    names: list[str] = []

    def write(text: str) -> str:
        names.append(f"user_nets_{tmp_path.name}_{len(names)}")
        (tmp_path / f"{names[-1]}.py").write_text(IMPORTS + text)
        return names[-1]

    yield write
    for name in names:
        sys.modules.pop(name, None)


def refused(where: str, **more: object) -> ConfigError:
    with pytest.raises(ConfigError) as error:
        load_user_net(where, **SIZES | more)
    assert repr(where) in error.value.what
    return error.value


def test_features_and_head_become_a_net(module):
    net = nets.build(f"{module(PLAIN)}:Plain", **SIZES)
    assert type(net) is Net
    assert net.width == 4
    assert {name.split(".")[0] for name in net.state_dict()} == {"body", "head"}
    x = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(net(x), net.head(net.body(x)))
    assert net(x).shape == (2, 5)


def test_checking_it_leaves_no_trace(module):
    where = f"{module(PLAIN)}:Plain"
    torch.manual_seed(3)
    net = load_user_net(where, **SIZES)
    after = torch.random.get_rng_state()
    torch.manual_seed(3)
    plain = sys.modules[where.split(":")[0]].Plain(**SIZES)
    assert torch.random.get_rng_state().equal(after)
    weights = zip(net.body.state_dict().values(), plain.features.state_dict().values(), strict=True)
    assert all(a.equal(b) for a, b in weights)
    assert net.body[1].running_mean.tolist() == [0.0] * 4
    assert [part.training for part in (net, net.body, net.body[0], net.body[1], net.head)] == [True] * 3 + [False, True]


def test_options_reach_it(module):
    where = f"{module(PLAIN)}:Plain"
    assert load_user_net(where, **SIZES, hidden=6).width == 6
    error = refused(where, hiden=6)
    assert "cannot be built: TypeError: " in error.what
    assert "unexpected keyword argument 'hiden'" in error.what
    assert error.hint == CONTRACT_HINT


def test_a_function_may_give_parts_without_a_forward(module):
    name = module("""
def maps(channels, classes, size):
    net = nn.Module()
    net.body, net.head = nn.Sequential(), nn.Conv2d(channels, classes, 1)
    return net
""")
    net = load_user_net(f"{name}:maps", **SIZES)
    assert net.width == 3
    assert net(torch.zeros(1, 3, 8, 8)).shape == (1, 5, 8, 8)


def test_body_goes_before_features(module):
    name = module("""
def both(channels, classes, size):
    net = nn.Module()
    net.body = nn.Sequential(nn.Flatten(), nn.Linear(channels * size * size, 7))
    net.features, net.head = nn.Identity(), nn.Linear(7, classes)
    return net
""")
    assert load_user_net(f"{name}:both", **SIZES).width == 7


def test_a_net_is_used_as_it_is(module):
    name = module("""
class Mine(Net):
    def __init__(self, channels, classes, size, width=2):
        pooled = nn.AdaptiveAvgPool2d(1), nn.Flatten()
        super().__init__(nn.Sequential(nn.Conv2d(channels, 2, 3), *pooled), nn.Linear(2, classes), width)

    def features(self, x):
        return self.body(2 * x / 2)
""")
    net = load_user_net(f"{name}:Mine", **SIZES)
    assert type(net).__name__ == "Mine"
    assert net.features(torch.zeros(2, 3, 8, 8)).shape == (2, 2)
    assert "says that its width is 9; it gives 2 features" in refused(f"{name}:Mine", width=9).what


def test_its_own_configuration_errors_pass_unchanged(module):
    name = module('def picky(**_):\n    raise ConfigError("only images of 4 px", hint="Shrink them.")\n')
    with pytest.raises(ConfigError, match="only images of 4 px") as error:
        load_user_net(f"{name}:picky", **SIZES)
    assert error.value.hint == "Shrink them."


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("no_such_package:net", "cannot be imported: ModuleNotFoundError: No module named 'no_such_package'"),
        (":net", "cannot be imported: '' is not the name of a module"),
        (".beside:net", "cannot be imported: '.beside' is not the name of a module"),
        ("./hospital_b.py:Crash", "cannot be imported: './hospital_b.py' is not the name of a module"),
        ("hospital_b.py:Crash", "cannot be imported: 'hospital_b.py' is not the name of a module"),
        ("C:/nets/hospital_b:Crash", "cannot be imported: 'C:/nets/hospital_b' is not the name of a module"),
    ],
)
def test_a_module_that_does_not_exist(where, message):
    error = refused(where)
    assert message in error.what
    assert "PYTHONPATH" in error.hint


def test_a_module_that_cannot_be_imported(module):
    for text, message in (("def net(:\n", "SyntaxError"), ("1 / 0\n", "ZeroDivisionError: division by zero")):
        assert f"cannot be imported: {message}" in refused(f"{module(text)}:net").what


def test_a_name_that_is_not_in_its_module(module):
    name = module(PLAIN)
    error = refused(f"{name}:Plian")
    assert error.what.endswith(f"{name} has no 'Plian'.")
    assert error.hint.startswith("Did you mean 'Plain'?")
    assert f"{name} has no ''" in refused(f"{name}:").what


def test_a_name_inside_another(module):
    name = module(PLAIN + "\n\nclass Outer:\n    Inner = Plain\n")
    assert load_user_net(f"{name}:Outer.Inner", **SIZES).width == 4
    error = refused(f"{name}:Outer.Iner")
    assert error.what.endswith(f"{name}.Outer has no 'Iner'.")
    assert error.hint.startswith("Did you mean 'Inner'?")


HEADLESS = """
def net(**_):
    net = nn.Module()
    net.features, net.classifier = nn.Flatten(), nn.Linear(192, 5)
    return net
"""
BODILESS = "def net(**_):\n    net = nn.Module()\n    net.head = nn.Linear(192, 5)\n    return net\n"
CALLABLE = """
class Method(nn.Module):
    def __init__(self, **_):
        super().__init__()
        self.head = nn.Linear(3, 5)

    def features(self, x):
        return x.mean((2, 3))


net = Method
"""
PARTS = """
def net(**_):
    net = nn.Module()
    net.body, net.head = {body}, {head}
    return net
"""
PAIR = """
class Pair(nn.Module):
    def forward(self, x):
        return x.flatten(1), x

class Take(nn.Module):
    def forward(self, pair):
        return pair[0][:, :5]

def net(**_):
    net = nn.Module()
    net.body, net.head = Pair(), Take()
    return net
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def net(channels, classes):\n    return nn.Identity()\n", "cannot be built: TypeError"),
        ("def net(**_):\n    return {}['x']\n", "cannot be built: KeyError: 'x'"),
        ("net = 3\n", "cannot be built: TypeError: 'int' object is not callable"),
        ("def net(**_):\n    return 'resnet'\n", "is a str, not an nn.Module"),
        (HEADLESS, "does not end in features and head; its parts: features, classifier."),
        (BODILESS, "does not end in features and head; its parts: head."),
        (CALLABLE, "does not end in features and head; its parts: head."),
        (PARTS.format(body="nn.Flatten()", head="nn.Linear(192, 4)"), "(2, 192) and logits (2, 4) for two images"),
        (PARTS.format(body="nn.Identity()", head="nn.Conv2d(3, 5, 3)"), "logits (2, 5, 6, 6) for two images"),
        (PARTS.format(body="nn.Flatten(2)", head="nn.Flatten()"), "features (2, 3, 64)"),
        (PARTS.format(body="nn.Linear(9, 2)", head="nn.Linear(2, 5)"), "does not accept images of (3, 8, 8): Runtime"),
        (PARTS.format(body="nn.Flatten()", head="nn.Module()"), "does not accept images of (3, 8, 8): NotImplemented"),
        (PAIR, "gives tuple and Tensor for features and logits, not tensors"),
    ],
)
def test_modules_without_body_and_head_are_refused(module, text, message):
    assert message in refused(f"{module(text)}:net").what


NECK = """
class Neck(Net):
    def __init__(self, neck, wide, **_):
        super().__init__(nn.Flatten(), nn.Linear(wide, 5), wide)
        self.neck = neck

    def features(self, x):
        return self.neck(self.body(x))

class Between(nn.Module):
    def __init__(self, neck, wide, **_):
        super().__init__()
        self.body, self.neck, self.head = nn.Flatten(), neck, nn.Linear(wide, 5)

    def forward(self, x):
        return self.head(self.neck(self.body(x)))

class Zero(nn.Linear):
    def forward(self, z):
        return z + 0 * super().forward(z)
"""


@pytest.mark.parametrize("cls", ["Neck", "Between"])
@pytest.mark.parametrize(
    ("neck", "message"),
    [
        ("nn.LayerNorm(192), 192", "in neither: neck (LayerNorm)"),
        ("nn.Linear(192, 7), 7", "in neither: neck (Linear)"),
        ("lambda z: z[:, :7], 7", "RuntimeError: mat1 and mat2 shapes cannot be multiplied"),
        ("nn.Dropout(), 192", "in neither: neck (Dropout)"),
        ("Zero(192, 192), 192", "in neither: neck (Zero)"),
        ("lambda z: 2 * z, 192", ""),
    ],
)
def test_layers_outside_body_and_head_are_refused(module, cls, neck, message):
    name = module(f"{NECK}\ndef net(**_):\n    return {cls}({neck})\n")
    error = refused(f"{name}:net")
    assert "computes something else than its head of its body: the two must make up the whole" in error.what
    assert [line.split(" (2x")[0] for line in error.details] == ([message] if message else [])
    assert "into the body" in error.hint


def test_modules_that_compute_nothing_more_are_accepted(module):
    """An unused layer, one that does nothing, and a module that holds body and head."""
    name = module("""
class Held(nn.Module):
    def __init__(self, *, channels, classes, size):
        super().__init__()
        self.trunk = nn.Sequential(nn.Flatten(), nn.Identity(), nn.Linear(channels * size * size, classes))
        self.body, self.head, self.unused = self.trunk[0], self.trunk[2], nn.Linear(2, 2)

    def forward(self, x):
        return self.trunk(x)
""")
    assert load_user_net(f"{name}:Held", **SIZES).width == 192
