"""Wording: whose words a class gets, and every mistake message with what to do."""

from __future__ import annotations

import tomllib

import pytest

from crossward.data.sources.phantom.blood import CLASSES
from crossward.errors import ConfigError, DataError
from crossward.text.class_wording import word_classes


def refused(classes, **options) -> str:
    with pytest.raises((ConfigError, DataError)) as error:
        word_classes(classes, **options)
    return str(error.value)


def test_words_and_prompts_of_the_blood_phantom():
    wording = word_classes(CLASSES)
    assert wording.classes == CLASSES
    assert wording.words == CLASSES
    assert wording.lexicon == "pbc"
    assert len(wording.templates) == 24
    assert wording.templates[2] == "a microscopic image of {}."
    assert wording.prompts[3][2] == "a microscopic image of immature granulocyte."
    assert [len(row) for row in wording.prompts] == [24] * 8


def test_the_order_of_the_classes_is_kept():
    words = word_classes(["NORMAL", "CNV", "DRUSEN", "DME"]).words
    assert words[:2] == ("Normal retina", "Choroidal neovascularization")


def test_words_of_the_configuration_come_first():
    concepts = {"Artefact": "dust_on  the slide", "platelet": "thrombocyte"}
    wording = word_classes([*CLASSES, "artefact"], concepts=concepts)
    assert wording.words == (*CLASSES[:7], "thrombocyte", "dust on the slide")
    assert wording.lexicon == "pbc"


def test_without_a_lexicon_pictures_are_images_and_photos():
    wording = word_classes(["x", "y"], concepts={"x": "cyst", "y": "stone"})
    assert wording.words == ("cyst", "stone")
    assert wording.lexicon is None
    assert len(wording.templates) == 12
    assert wording.prompts[1][0] == "an image of stone."


def test_nouns_and_templates_replace_those_of_the_lexicon():
    assert word_classes(CLASSES, nouns=["smear"]).templates[0] == "a smear of {}."
    assert len(word_classes(["CNV", "DME", "DRUSEN", "NORMAL"], nouns=["scan", "picture"]).templates) == 12
    wording = word_classes(CLASSES, templates=["look: {}", "{}!"])
    assert wording.prompts[0] == ("look: basophil", "basophil!")
    assert "Leave one" in refused(CLASSES, nouns=["smear"], templates=["{}"])


def test_a_named_lexicon_serves_a_part_of_its_classes():
    assert word_classes(["cat", "dog"], lexicon="cifar10").words == ("cat", "dog")
    assert word_classes(["malignant", "benign"], lexicon="breakhis").words[0] == "malignant breast tumor"
    assert word_classes(["DR", "MH"], lexicon="oct-c8-released").words == ("Macular hole", "Diabetic retinopathy")


def test_a_share_of_the_templates():
    assert len(word_classes(CLASSES, fraction=0.25).templates) == 6
    one, other = (word_classes(CLASSES, fraction=0.25, seed=seed) for seed in (1, 2))
    assert one.templates != other.templates
    assert "text.fraction = 0" in refused(CLASSES, fraction=0)


def test_classes_without_words_get_a_section_to_paste():
    with pytest.raises(ConfigError) as error:
        word_classes(["glomerulus", "ptc", 'the "rest"'])
    assert str(error.value).startswith("3 of 3 classes have no words. Say what they are:")
    pasted = tomllib.loads("\n".join(error.value.details))
    assert pasted == {"text": {"concepts": {"glomerulus": "glomerulus", "ptc": "", 'the "rest"': ""}}}
    assert "text.concepts.ptc: no words" in refused(["glomerulus", "ptc", 'the "rest"'], **pasted["text"])


def test_a_lexicon_that_knows_most_asks_for_the_rest_only():
    message = refused([*CLASSES, "artefact"])
    assert message.splitlines()[:3] == [
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
    message = refused(classes)
    assert "may mean something else here" in message
    assert f'text.lexicon = "{name}"' in message


def test_numbers_need_names():
    message = refused([str(n) for n in range(12)])
    assert message.startswith("12 of 12 classes have no words.")
    assert "data.classes" in message


def test_words_for_a_class_that_does_not_exist():
    message = refused(CLASSES, concepts={"platlet": "thrombocyte", "monocyte": "  ", "x": "y"})
    assert "text.concepts.platlet: there is no such class. Did you mean 'platelet'?" in message
    assert "text.concepts.monocyte: no words" in message
    assert "text.concepts.x: there is no such class" in message


def test_a_class_named_twice_in_the_concepts():
    assert "text.concepts.IG and text.concepts.ig: one class" in refused(
        ["ig", "x"], concepts={"IG": "a", "ig": "b", "x": "c"}
    )


def test_classes_that_cannot_be_told_apart():
    with pytest.raises(DataError, match="cannot be told apart") as error:
        word_classes(["Z-line", "polyp", "z_line"])
    assert error.value.details == ("'Z-line' and 'z_line'",)
    assert word_classes(list("Aa"), lexicon="femnist").words == ("uppercase letter A", "lowercase letter a")


def test_two_classes_with_the_same_words():
    message = refused(["ig", "immature granulocyte", "platelet", "monocyte", "neutrophil"])
    assert "ig = 'immature granulocyte' and immature granulocyte = 'immature granulocyte'" in message
    assert "x = 'Cyst' and y = 'cyst'" in refused(["x", "y"], concepts={"x": "Cyst", "y": "cyst"})


def test_an_unknown_lexicon_names_the_nearest():
    assert "Did you mean 'kvasir-v2'?" in refused(CLASSES, lexicon="kvasir")
