"""Reading a configuration: every mistake told at once, with its key, its line and the nearest valid name."""

from __future__ import annotations

import pytest

from crossward.config.reading import config_from, differences, method_of, plugins_of, read_config
from crossward.errors import ConfigError
from crossward.methods import METHODS
from crossward.methods.fedprox import FedProx
from crossward.plugins.finetune import Finetune
from crossward.plugins.prox import Prox


@pytest.fixture
def written(tmp_path):
    def write(text):
        file = tmp_path / "c.toml"
        file.write_text(text)
        return file

    return write


def refused(call, *args, **kwargs):
    with pytest.raises(ConfigError) as error:
        call(*args, **kwargs)
    assert error.value.exit_code == 2
    return error.value


def test_a_file_is_read(written):
    config = read_config(written('[run]\nrounds = 7\n[method]\nname = "fedprox"\nmu = 0.5\n'))
    assert (config.run.rounds, config.method.name, config.method.options) == (7, "fedprox", {"mu": 0.5})


def test_an_unknown_key_names_its_line_and_the_nearest(written):
    file = written("[run]\nrounds = 2\n\n[train]\nepochs = 1\nlearning_rat = 0.1\nbatchsize = 4 # comment\n")
    error = refused(read_config, file)
    first, second = error.details
    assert first.startswith(f"train.learning_rat: no such key ({file}, line 6).")
    assert "Known: epochs, batch_size, drop_last, optimizer, lr," in first
    assert second.startswith(f"train.batchsize: no such key ({file}, line 7). Did you mean 'batch_size'?")


def test_an_unknown_section_names_the_nearest(written):
    file = written("[partion]\nsites = 3\n")
    assert f"partion: no such key ({file}, line 1). Did you mean 'partition'?" in refused(read_config, file).details[0]


@pytest.mark.parametrize(
    ("text", "key", "line", "meant"),
    [
        ("[data]\nsource = 'phantom'\nsite = 3\n", "data.site", 3, "sites"),
        ("[data]\nsource = 'folder'\npath = 'x'\nsise = 3\n", "data.sise", 4, "size"),
        ("data.source = 'npz'\ndata.path = 'x'\ndata.chanels = 3\n", "data.chanels", 3, "channels"),
        ("[engine]\n  worker = 3\n", "engine.worker", 2, "workers"),
        ("[evaluate]\nselekt = 'f1'\n", "evaluate.selekt", 2, "select"),
    ],
)
def test_where_and_what_was_meant(written, text, key, line, meant):
    file = written(text)
    [told] = refused(read_config, file).details
    assert told.startswith(f"{key}: no such key ({file}, line {line}). Did you mean {meant!r}?")


def test_negative_rounds_name_their_line(written):
    file = written("[run]\nrounds = -5\n")
    [told] = refused(read_config, file).details
    assert told == f"run.rounds: input should be greater than or equal to 1, not -5 ({file}, line 2)"


def test_every_mistake_is_told_at_once(written):
    file = written(
        "[run]\nrounds = 0\nsede = 1\n[data]\nsource = 'phantom'\nsites = 'many'\n"
        "[train]\nlr = -1\n[engine]\nname = 'cloud'\n"
    )
    told = [line.split(":")[0] for line in refused(read_config, file).details]
    assert sorted(told) == ["data.sites", "engine.name", "run.rounds", "run.sede", "train.lr"]


def test_names_and_options_are_told_at_once(written):
    file = written(
        '[method]\nname = "fedprix+nope"\nmu = 1\n[net]\nname = "resnet81"\n[plugin.ft]\nepochs = 0\nepoch = 3\n'
    )
    told = refused(read_config, file).details
    assert f"method: there is no method 'fedprix' ({file}, line 2). Did you mean 'fedprox'?" in told[0]
    assert "plugin: there is no plugin 'nope'" in told[1]
    assert any(line.startswith(f"plugin.ft.epoch: no such option ({file}, line 8)") for line in told)
    assert any(line.startswith("plugin.ft.epochs: ") and "not 0" in line for line in told)
    assert f'plugin.ft: the method does not carry it ({file}, line 6). Write method.name = "fedprix+nope+ft".' in told
    assert any(f"net.name: there is no net 'resnet81' ({file}, line 5). Did you mean 'resnet8'?" in t for t in told)


@pytest.mark.parametrize(
    ("method", "told"),
    [
        ({"name": "fedprox", "mu": -1}, "method.mu: input should be greater than or equal to 0, not -1"),
        ({"name": "fedprox", "mu": "x"}, "method.mu: input should be a valid number"),
        ({"name": "scaffold", "option": "III"}, "method.option: input should be 'auto', 'I' or 'II', not 'III'"),
        ({"name": "fedavg", "mu": 0.1}, "method.mu: no such option. Known: buffers."),
        ({"name": "scaffold", "serverlr": 1}, "method.serverlr: no such option. Did you mean 'server_lr'?"),
        ({"name": "FedAvgg"}, "method: there is no method 'FedAvgg'. Did you mean 'fedavg'?"),
    ],
)
def test_options_of_a_method(method, told):
    assert refused(config_from, {"method": method}).details[0].startswith(told)


def test_options_of_a_net():
    error = refused(config_from, {"net": {"name": "resnet18", "widht": 0.5}})
    assert error.details[0].startswith("net.widht: no such option of resnet18. Did you mean 'width'?")


@pytest.mark.parametrize("name", ["auto", "resnet18", "own.nets:build", ["resnet18", "cnn"]])
def test_what_the_data_decide_is_no_option_of_a_net(name):
    net = {"name": name, "size": 64, "channels": 3, "classes": 2}
    told = [
        "size: it is given by the data. Set data.size.",
        "channels: it is given by the data. Set data.channels where the source has it.",
        "classes: it is given by the data. They are the classes of its labels.",
    ]
    assert refused(config_from, {"net": net}).details == tuple(f"net.{line}" for line in told)
    if isinstance(name, str):
        own = refused(config_from, {"site": [{}, {"net": net}]}).details
        assert own == tuple(f"site.1.net.{line}" for line in told)


def test_what_the_data_decide_names_its_line(written):
    file = written("[net]\nsize = 64\n")
    assert refused(read_config, file).details[0].startswith(f"net.size: it is given by the data ({file}, line 2).")


def test_a_net_of_ones_own_without_a_colon():
    (line,) = refused(config_from, {"net": "hospital_b.Crash"}).details
    assert "there is no net 'hospital_b.Crash'" in line
    assert 'A network of your own is named "package.module:function".' in line


def test_nets_in_turn_may_share_a_width():
    net = config_from({"net": {"name": ["resnet18", "efficientnet-b0"], "width": 0.25}}).net
    assert net.options == {"width": 0.25}


def test_broken_toml_names_its_line(written):
    file = written("[run]\nrounds = = 3\n")
    error = refused(read_config, file)
    assert str(file) in error.what
    assert "line 2" in error.what


def test_files_that_cannot_be_read(tmp_path):
    assert "none.toml" in refused(read_config, tmp_path / "none.toml").what
    assert "is a folder, not a configuration" in refused(read_config, tmp_path).what
    (tmp_path / "latin.toml").write_bytes(b"[run]\nname = '\xe9'\n")
    assert "latin.toml" in refused(read_config, tmp_path / "latin.toml").what


def test_overrides(written):
    file = written("[run]\nrounds = 2\n")
    sets = ["run.rounds=9", "method.name=fedavg+ft", "train.lr = 1e-3", 'run.name="a b"', "plugin.ft.epochs=2"]
    config = read_config(file, [*sets, "data.augment=['hflip', 'crop:2']", "evaluate.keep_predictions=false"])
    assert (config.run.rounds, config.run.name, config.method.name) == (9, "a b", "fedavg+ft")
    assert (config.train.lr, config.data.augment) == (0.001, ("hflip", "crop:2"))
    assert config.evaluate.keep_predictions is False
    assert plugins_of(config) == (Finetune(2),)


def test_a_wrong_override_names_its_flag(written):
    file = written("[run]\nrounds = 2\n")
    error = refused(read_config, file, ["run.rounds=many", "train.lrr=1"])
    assert error.details[0].endswith("(--set run.rounds=many)")
    assert error.details[1].startswith("train.lrr: no such key (--set train.lrr=1). Did you mean 'lr'?")


@pytest.mark.parametrize("flag", ["run.rounds", "=3", ""])
def test_overrides_without_a_key_or_value(written, flag):
    assert repr(flag) in refused(read_config, written(""), [flag]).what


def test_an_override_below_a_value(written):
    assert "'rounds' is a value" in refused(read_config, written("[run]\nrounds = 2\n"), ["run.rounds.x=1"]).what


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_made_from_its_name(name):
    made = method_of(config_from({"method": {"name": name}}))
    assert made == type(made)()
    assert type(made).__module__ == METHODS[name][0]


def test_options_reach_methods_and_plugins():
    config = config_from({"method": {"name": "fedprox+prox+ft", "mu": 3}, "plugin": {"prox": {"weight": 2}}})
    assert method_of(config) == FedProx(mu=3.0)
    assert plugins_of(config) == (Prox(2.0), Finetune(5))


def test_differences():
    old = config_from({"train": {"lr": 0.1}}).canonical()
    new = config_from({"train": {"lr": 0.2}, "engine": {"workers": 7}}).canonical()
    assert differences(old, old) == []
    assert differences(old, new) == ["train.lr: 0.1 in the run, 0.2 now", "engine.workers: 'auto' in the run, 7 now"]
    assert differences({"a": {"b": 1}}, {}) == ["a: {'b': 1} in the run, None now"]


def test_a_value_that_may_be_of_two_kinds_has_one_line_with_both_reasons():
    with pytest.raises(ConfigError) as error:
        config_from({"method": {"name": "fedcb", "tau": -1, "taus": [3.0, -2.0]}})
    lines = str(error.value).splitlines()
    assert "  method.tau: input should be greater than 0 or input should be 'auto', not -1" in lines
    assert "  method.taus.1: input should be greater than 0, not -2.0" in lines


def test_a_papers_recipe_is_its_training_and_what_is_written_goes_before_it(written):
    config = read_config(written('[method]\nname = "fednpr+ft"\n[train]\nrecipe = "paper"\nbatch_size = 8\n'))
    assert (config.train.optimizer, config.train.lr, config.train.milestones) == ("adam", 1e-3, (60, 70))
    assert (config.train.keep_state, config.train.batch_size) == (True, 8)
    assert "recipe" not in config.canonical()["train"]  # what is kept is what it stood for


def test_a_recipe_that_is_not_there_names_those_that_are(written):
    error = refused(read_config, written('[method]\nname = "fedavg"\n[train]\nrecipe = "paper"\n'))
    assert error.details[0].startswith("train.recipe: 'paper' is not known of fedavg (")
    assert "line 4" in error.details[0]
    assert "fednpr" in error.details[0]
    assert "'mine'" in refused(config_from, {"method": {"name": "fednpr"}, "train": {"recipe": "mine"}}).details[0]
    wrong = refused(config_from, {"method": {"name": "fednrp"}, "train": {"recipe": "paper"}}).details
    assert wrong == ["method: there is no method 'fednrp'. Did you mean fednpr?"] or "fednpr" in wrong[0]


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"weight": -0.1}, "weight"),
        ({"epsilon": 0}, "epsilon"),
        ({"epsilon": 1e-30}, "epsilon"),  # exp(1 / epsilon) is beyond single precision
        ({"k": 0}, "k"),
        ({"k": "many"}, "k"),
    ],
)
def test_wrong_options_of_npr_are_refused(options, key):
    for config in (
        {"method": {"name": "fedavg+npr"}, "plugin": {"npr": options}},
        {"method": {"name": "fednpr"} | options},
    ):
        (line,) = refused(config_from, config).details
        assert f".{key}: " in line
