"""Wording: whose words a class gets, and every mistake told with what to do."""

from __future__ import annotations

import tomllib

import pytest

from crossward.data.sources.phantom.blood import CLASSES
from crossward.errors import ConfigError, DataError
from crossward.text.wording import worded


def refused(classes, **options) -> str:
    with pytest.raises((ConfigError, DataError)) as error:
        worded(classes, **options)
    return str(error.value)


def test_words_and_prompts_of_the_blood_phantom():
    made = worded(CLASSES)
    assert (made.classes, made.words, made.lexicon) == (CLASSES, CLASSES, "pbc")
    assert len(made.templates) == 24
    assert made.templates[2] == "a microscopic image of {}."
    assert made.prompts[3][2] == "a microscopic image of immature granulocyte."
    assert [len(row) for row in made.prompts] == [24] * 8


def test_the_order_of_the_classes_is_kept():
    assert worded(["NORMAL", "CNV", "DRUSEN", "DME"]).words[:2] == ("Normal retina", "Choroidal neovascularization")


def test_words_of_the_configuration_come_first():
    made = worded([*CLASSES, "artefact"], concepts={"Artefact": "dust_on  the slide", "platelet": "thrombocyte"})
    assert made.words == (*CLASSES[:7], "thrombocyte", "dust on the slide")
    assert made.lexicon == "pbc"


def test_without_a_lexicon_pictures_are_images_and_photos():
    made = worded(["x", "y"], concepts={"x": "cyst", "y": "stone"})
    assert (made.words, made.lexicon, len(made.templates)) == (("cyst", "stone"), None, 12)
    assert made.prompts[1][0] == "an image of stone."


def test_nouns_and_templates_replace_those_of_the_lexicon():
    assert worded(CLASSES, nouns=["smear"]).templates[0] == "a smear of {}."
    assert len(worded(["CNV", "DME", "DRUSEN", "NORMAL"], nouns=["scan", "picture"]).templates) == 12
    made = worded(CLASSES, templates=["look: {}", "{}!"])
    assert made.prompts[0] == ("look: basophil", "basophil!")
    assert "Leave one" in refused(CLASSES, nouns=["smear"], templates=["{}"])


def test_a_named_lexicon_serves_a_part_of_its_classes():
    assert worded(["cat", "dog"], lexicon="cifar10").words == ("cat", "dog")
    assert worded(["malignant", "benign"], lexicon="breakhis").words[0] == "malignant breast tumor"
    assert worded(["DR", "MH"], lexicon="oct-c8-released").words == ("Macular hole", "Diabetic retinopathy")


def test_a_share_of_the_templates():
    assert len(worded(CLASSES, fraction=0.25).templates) == 6
    assert worded(CLASSES, fraction=0.25, seed=1).templates != worded(CLASSES, fraction=0.25, seed=2).templates
    assert "text.fraction = 0" in refused(CLASSES, fraction=0)


def test_classes_without_words_get_a_section_to_paste():
    with pytest.raises(ConfigError) as error:
        worded(["glomerulus", "ptc", 'the "rest"'])
    assert str(error.value).startswith("3 of 3 classes have no words. Say what they are:")
    pasted = tomllib.loads("\n".join(error.value.details))
    assert pasted == {"text": {"concepts": {"glomerulus": "glomerulus", "ptc": "", 'the "rest"': ""}}}
    assert "text.concepts.ptc: no words" in refused(["glomerulus", "ptc", 'the "rest"'], **pasted["text"])


def test_a_list_that_knows_most_asks_for_the_rest_only():
    told = refused([*CLASSES, "artefact"])
    assert told.splitlines()[:3] == [
        "'pbc' has no words for 1 of 9 classes. Say what they are:",
        "  [text.concepts]",
        '  "artefact" = "artefact"',
    ]
    named = refused(["cat", "unicorn"], lexicon="cifar10")
    assert '"unicorn" = "unicorn"' in named
    assert '"cat"' not in named


@pytest.mark.parametrize(
    ("classes", "name"), [(["0", "1"], "femnist"), (["benign", "malignant"], "breakhis"), (["cat", "dog"], "cifar10")]
)
def test_names_that_may_mean_anything_are_not_taken_for_granted(classes, name):
    told = refused(classes)
    assert "may mean something else here" in told
    assert f'text.lexicon = "{name}"' in told


def test_numbers_are_told_to_be_named():
    told = refused([str(n) for n in range(12)])
    assert told.startswith("12 of 12 classes have no words.")
    assert "data.classes" in told


def test_words_for_a_class_that_does_not_exist():
    told = refused(CLASSES, concepts={"platlet": "thrombocyte", "monocyte": "  ", "x": "y"})
    assert "text.concepts.platlet: there is no such class. Did you mean 'platelet'?" in told
    assert "text.concepts.monocyte: no words" in told
    assert "text.concepts.x: there is no such class" in told


def test_a_class_named_twice_in_the_concepts():
    assert "text.concepts.IG and text.concepts.ig: one class" in refused(
        ["ig", "x"], concepts={"IG": "a", "ig": "b", "x": "c"}
    )


def test_classes_that_cannot_be_told_apart():
    with pytest.raises(DataError, match="cannot be told apart") as error:
        worded(["Z-line", "polyp", "z_line"])
    assert error.value.details == ("'Z-line' and 'z_line'",)
    assert worded(list("Aa"), lexicon="femnist").words == ("uppercase letter A", "lowercase letter a")


def test_two_classes_with_the_same_words():
    told = refused(["ig", "immature granulocyte", "platelet", "monocyte", "neutrophil"])
    assert "ig = 'immature granulocyte' and immature granulocyte = 'immature granulocyte'" in told
    assert "x = 'Cyst' and y = 'cyst'" in refused(["x", "y"], concepts={"x": "Cyst", "y": "cyst"})


def test_an_unknown_lexicon_names_the_nearest():
    assert "Did you mean 'kvasir-v2'?" in refused(CLASSES, lexicon="kvasir")
