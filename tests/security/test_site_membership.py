"""Attack: a coordinator that has an image asks a hospital, by way of a public set, whether it has the same image."""

from __future__ import annotations

import json

import pytest
import torch

from crossward.hospitals.folder_report import site_report
from crossward.runs.build import prepare
from crossward.testing.attacked_site import as_bytes, attacked_service, opening, tiny_config

PUBLIC_IMAGES = 40
KT_PFL = {"name": "kt-pfl", "start_epochs": 1}


@pytest.fixture(scope="module")
def own_images():
    """Training, validation and test images of the hospital, as its coordinator must not learn that it has them."""
    federation = prepare(tiny_config()).federation
    split = federation.sites[0]
    rows = torch.cat([split.train[:14], split.val[:3], split.test[:3]])
    return federation.collection.images[rows]


def public_set(own_images, stolen, size=PUBLIC_IMAGES):
    """`size` images that everybody may see, the first `stolen` of which are the hospital's own."""
    noise = torch.randint(0, 256, (size, *own_images.shape[1:]), generator=torch.Generator().manual_seed(5))
    return torch.cat([own_images[:stolen], noise.to(torch.uint8)[stolen:]])


def answer_to(folder, public):
    """The hospital's answer without its log's tag, which is a random number to everybody else."""
    reply = attacked_service(folder).answer(opening(tiny_config(method=KT_PFL), public))
    header = {key: value for key, value in reply.header.items() if key != "log"}
    return as_bytes(type(reply)(header, reply.payload)), reply


def test_a_public_set_tells_nobody_which_images_are_a_sites_own(own_images, tmp_path):
    answers = {stolen: answer_to(tmp_path / str(stolen), public_set(own_images, stolen))[0] for stolen in (0, 1, 7, 20)}
    assert len({*answers.values()}) == 1, {stolen: answer[-160:] for stolen, answer in answers.items()}


@pytest.mark.parametrize("shape", ["small", "other size", "not images", "copies"])
def test_a_public_set_that_is_refused_tells_nothing_either(own_images, tmp_path, shape):
    answers = set()
    for stolen in (0, 1, 2):
        public = public_set(own_images, stolen)
        if shape == "small":
            public = public[:3]
        elif shape == "other size":
            public = public[:, :9]
        elif shape == "not images":
            public = public.float()
        else:  # one image, forty times over, passes no minimum
            public = public[:1].repeat(PUBLIC_IMAGES, 1, 1, 1)
        answer, reply = answer_to(tmp_path / str(stolen), public)
        assert reply.failure
        answers.add(answer)
    assert len(answers) == 1


def test_the_site_itself_can_see_what_was_asked(own_images, tmp_path):
    for stolen in (0, 7):
        answer_to(tmp_path / str(stolen), public_set(own_images, stolen))
    none, seven = ((tmp_path / str(stolen) / "site" / "notes.log").read_text() for stolen in (0, 7))
    assert "0 of the 40 public images are among this site's own" in none
    assert "7 of the 40 public images are among this site's own" in seven
    assert len(none) == len(seven)  # as much is written either way, in as much time


def test_every_answer_takes_the_same_steps(own_images, tmp_path):
    """What lies on the site's disk after the answer, which takes time to write, differs in nothing but the count."""
    for stolen in (0, 7):
        answer_to(tmp_path / str(stolen), public_set(own_images, stolen))
    sizes = []
    for stolen in (0, 7):
        folder = tmp_path / str(stolen) / "site"
        sizes.append({str(file.relative_to(folder)): file.stat().st_size for file in folder.rglob("*")})
    assert sizes[0] == sizes[1]


def test_the_reply_holds_no_count_of_images_that_the_public_set_changes(own_images, tmp_path):
    facts = json.loads(answer_to(tmp_path, public_set(own_images, 7))[0])
    assert facts["images"]["train"] == len(prepare(tiny_config()).federation.sites[0].train)


@pytest.mark.parametrize("stolen", [0, 7])
def test_the_people_of_the_site_are_warned_and_nobody_else(own_images, tmp_path, stolen):
    """`crossward site check` is not in order; the answer was the same."""
    answer_to(tmp_path, public_set(own_images, stolen))
    findings = [finding for finding in site_report(tmp_path / "site") if finding.subject == "public set"]
    assert [finding.in_order for finding in findings] == ([True, False] if stolen else [])
    assert all("7 of the 40" in finding.text or "by telephone" in finding.text for finding in findings)
