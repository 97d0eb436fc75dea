"""Templates: the sentences of FedBM to the letter, and the share of them that is used."""

from __future__ import annotations

import pytest

from crossward.errors import ConfigError
from crossward.text.lexicon import LEXICONS
from crossward.text.prompts import choose_templates, fill_template, frame_templates, validate_nouns, validate_templates

KVASIR = """
an image of {}.|a photo of {}.|a endoscopic image of {}.|a endoscopic photo of {}.
this is an image of {}.|this is a photo of {}.|this is a endoscopic image of {}.|this is a endoscopic photo of {}.
{} presented in image.|{} presented in photo.|{} presented in endoscopic image.|{} presented in endoscopic photo.
the image shows {}.|the photo shows {}.|the endoscopic image shows {}.|the endoscopic photo shows {}.
the image shows the presence of {}.|the photo shows the presence of {}.
the endoscopic image shows the presence of {}.|the endoscopic photo shows the presence of {}.
the presence of {} in image.|the presence of {} in photo.
the presence of {} in endoscopic image.|the presence of {} in endoscopic photo.
"""
OCT = """
an image of {}.|a photo of {}.|an OCT scan of {}.
this is an image of {}.|this is a photo of {}.|this is an OCT scan of {}.|this is an OCT image of {}.
this is an OCT photo of {}.
{} presented in image.|{} presented in photo.|{} presented in OCT scan.|{} presented in OCT image.
{} presented in OCT photo.
the image shows {}.|the photo shows {}.|the OCT scan shows {}.|the OCT image shows {}.|the OCT photo shows {}.
the image shows the presence of {}.|the photo shows the presence of {}.|the OCT scan shows the presence of {}.
the OCT image shows the presence of {}.|the OCT photo shows the presence of {}.
the presence of {} in image.|the presence of {} in photo.|the presence of {} in OCT scan.
the presence of {} in OCT image.|the presence of {} in OCT photo.
"""


@pytest.mark.parametrize(("name", "text", "count"), [("kvasir-v2", KVASIR, 24), ("oct-c8", OCT, 28)])
def test_the_sentences_of_fedbm(name, text, count):
    templates = frame_templates(LEXICONS[name].nouns, LEXICONS[name].leading)
    assert list(templates) == text.strip().replace("\n", "|").split("|")
    assert len(templates) == count


def test_articles_go_by_sound():
    nouns = ["image", "photo", "OCT scan", "CT scan", "MRI scan", "X-ray", "US frame", "ultrasound", "Echo"]
    first = [template.removesuffix(" of {}.") for template in frame_templates(nouns)[: len(nouns)]]
    assert first == [
        "an image", "a photo", "an OCT scan", "a CT scan", "an MRI scan", "an X-ray", "a US frame", "an ultrasound",
        "an Echo",
    ]  # fmt: skip


def test_a_noun_may_bring_its_article():
    templates = frame_templates(["a endoscopic image", "an hour"])
    assert templates[:2] == ("a endoscopic image of {}.", "an hour of {}.")
    assert templates[4:6] == ("{} presented in endoscopic image.", "{} presented in hour.")


def test_words_are_put_in_as_they_are():
    assert fill_template("the image shows {}.", "a {x} 100%") == "the image shows a {x} 100%."


@pytest.mark.parametrize(("fraction", "count"), [(0.01, 1), (0.25, 7), (0.26, 8), (0.5, 14), (1.0, 28)])
def test_a_share_is_rounded_up(fraction, count):
    every = frame_templates(LEXICONS["oct-c8"].nouns, LEXICONS["oct-c8"].leading)
    chosen = choose_templates(every, fraction, seed=0)
    assert len(set(chosen)) == count
    assert [t for t in every if t in chosen] == list(chosen)  # in order


def test_floating_point_does_not_add_a_template():
    assert len(choose_templates([str(n) for n in range(30)], 0.1, 0)) == 3  # 0.1 * 30 = 3.0000000000000004


def test_a_share_is_seeded_and_grows():
    every = [str(n) for n in range(28)]
    assert choose_templates(every, 0.25, 1) == choose_templates(every, 0.25, 1)
    assert choose_templates(every, 0.25, 1) != choose_templates(every, 0.25, 2)
    assert set(choose_templates(every, 0.25, 1)) < set(choose_templates(every, 0.5, 1))


@pytest.mark.parametrize("fraction", [0, -0.1, 1.01, float("nan")])
def test_a_fraction_out_of_range(fraction):
    with pytest.raises(ConfigError, match=r"text\.fraction"):
        choose_templates(["{}"], fraction, 0)


def test_every_wrong_template_is_named():
    with pytest.raises(ConfigError) as error:
        validate_templates(["a {}.", "no slot", "{} and {}", "", "a {}."])
    assert [line.split(":")[0] for line in error.value.details] == [f"text.templates[{n}]" for n in (1, 2, 3, 4)]
    assert "0 of them" in error.value.details[0]
    assert "2 of them" in error.value.details[1]
    assert "there already" in error.value.details[3]


def test_every_wrong_noun_is_named():
    with pytest.raises(ConfigError) as error:
        validate_nouns(["CT scan", " ", "a {}", "CT scan"])
    assert [line.split(":")[0] for line in error.value.details] == [f"text.nouns[{n}]" for n in (1, 2, 3)]
    assert validate_nouns([" CT  scan"]) == ("CT scan",)
