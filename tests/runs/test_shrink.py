"""Sites that see smaller images: pixels by hand, what a site opens, and runs whose weights fit any size."""

from __future__ import annotations

import pytest
import torch

from crossward.config.reading import config_from
from crossward.core.samples import Samples
from crossward.errors import ConfigError
from crossward.runs import lifecycle as api
from crossward.runs.build import prepare

NARROW = {"name": "resnet18", "width": 0.125, "stem": "small"}


@pytest.fixture
def asked(config):
    """A configuration of three sites, the second of which sees images at half their size."""

    def made(**sections):
        data = {"train": 12, "val": 4, "test": 6, "global_test": 6, "size": 32}
        return config(data=data, **sections) | {"site": [{}, {"shrink": 2}]}

    return made


def test_a_shrunk_pixel_is_the_mean_of_those_it_stands_for():
    images = torch.tensor([[0, 10, 20, 30], [40, 50, 60, 70], [5, 5, 1, 1], [5, 5, 1, 2]], dtype=torch.uint8)
    masks = torch.arange(16, dtype=torch.uint8).view(1, 4, 4)
    samples = Samples(images.view(1, 4, 4, 1), masks, torch.tensor([0]), (0.5,), (0.25,), shrink=2)
    x, y = samples.take(torch.tensor([0]))
    means = [[25, 45], [5, 1.25]]  # (0 + 10 + 40 + 50) / 4 ...
    torch.testing.assert_close(x, (torch.tensor([[means]]) / 255 - 0.5) / 0.25)
    assert y.equal(masks.long())


def test_three_columns_of_five_leave_two_aside():
    images = torch.tensor([0, 30, 60, 90, 200], dtype=torch.uint8).expand(1, 5, 5)[..., None].contiguous()
    samples = Samples(images, torch.zeros(1, dtype=torch.int64), torch.tensor([0]), (0.0,), (1.0,), shrink=3)
    torch.testing.assert_close(samples.take(torch.tensor([0]))[0], torch.full((1, 1, 1, 1), 30 / 255))


def test_everything_a_site_opens_is_shrunk(asked):
    run_sites = prepare(config_from(asked(method={"name": "local"}, net=NARROW, partition={"public": 0.25}))).run_sites
    assert [run_sites.spec(site).size for site in run_sites.ids] == [32, 16, 32]
    site, server = run_sites.open(1, 0, {}), run_sites.server(0)
    every = [site.train, site.val, site.test, site.public, *site.common.values()]
    assert [samples.shrink for samples in every] == [2] * 6
    assert site.train.take(site.train.index[:2])[0].shape == (2, 3, 16, 16)
    assert server.public.shrink == 1  # its network is that of the first site
    assert [server.public_for(run_sites.architecture(site)).shrink for site in run_sites.ids] == [1, 2, 1]


def test_the_server_sees_what_the_first_site_sees(asked):
    first = asked(net=NARROW, partition={"public": 0.25}) | {"site": [{"shrink": 2}]}
    run_sites = prepare(config_from(first)).run_sites
    assert (run_sites.server(0).public.shrink, run_sites.server(0).spec.size) == (2, 16)


def test_weights_that_fit_are_averaged_whatever_the_size(asked):
    result = api.run(asked(net=NARROW, run={"rounds": 1}))
    assert result.about["personal"]  # one network, but not one size of images
    one, other = (api.RunDir(result.folder).tree(f"weights/last/hospital-{n}.safetensors")["model"] for n in (1, 2))
    assert all(one[name].equal(other[name]) for name in one)
    federation, kept = prepare(config_from(result.config)).federation, result.predictions(1)
    for site in federation.sites[:2]:
        told = result.deployed(site.name).predict(federation.collection.images[site.test])
        torch.testing.assert_close(told, kept[site.name]["test"], atol=1e-6, rtol=1e-5)


def test_weights_that_depend_on_the_size_are_not(asked, no_training):
    with no_training(), pytest.raises(ConfigError) as error:
        api.run(asked(net={"name": "cnn"}))
    assert error.value.what.endswith("those of hospital-1 (cnn) and hospital-2 (cnn at 16 px) differ")
    assert error.value.details == ("body.7.weight: (120, 400) and (120, 16)",)
