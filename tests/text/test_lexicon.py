"""The built-in lists: their words, and which of them is lexicon by class names."""

from __future__ import annotations

import pytest

from crossward.data.sources import medmnist
from crossward.data.sources.phantom.blood import CLASSES
from crossward.text.lexicon import LEXICONS, find_lexicon, normalise_name, normalise_spaces

SIZES = {
    "pbc": 8, "ham10000": 7, "oct-c8": 8, "oct-c8-released": 8, "kvasir-v2": 8, "oct2017": 4, "isic2019": 8, "ich": 5,
    "breakhis": 8, "femnist": 62, "emnist": 26, "cifar10": 10, "cifar100": 100,
}  # fmt: skip


def test_every_lexicon_has_its_classes():
    assert {name: len(lexicon.concepts) for name, lexicon in LEXICONS.items()} == SIZES


@pytest.mark.parametrize("lexicon", LEXICONS.values(), ids=lambda lexicon: lexicon.name)
def test_no_two_classes_of_a_lexicon_are_alike(lexicon):
    assert len({normalise_name(name) for name in lexicon.concepts}) == len(lexicon.concepts)
    assert len({normalise_name(words) for words in lexicon.concepts.values()}) == len(lexicon.concepts)
    assert all(words == normalise_spaces(words) for words in (*lexicon.concepts.values(), *lexicon.aliases.values()))


def test_oct_c8_and_the_swap_of_the_released_code():
    right = LEXICONS["oct-c8"]
    released = LEXICONS["oct-c8-released"]
    assert (
        list(right.concepts) == ["AMD", "CNV", "CSR", "DME", "DR", "DRUSEN", "MH", "NORMAL"] == list(released.concepts)
    )
    assert [*right.concepts.values()] == [
        "Age-related macular degeneration",
        "Choroidal neovascularization",
        "Central serous retinopathy",
        "Diabetic macular edema",
        "Diabetic retinopathy",
        "Choroidal drusen",
        "Macular hole",
        "Normal retina",
    ]
    assert [*released.concepts.values()][4:7] == ["Macular hole", "Choroidal drusen", "Diabetic retinopathy"]
    assert released.words("diabetic retinopathy") == "Macular hole"  # the label is swapped by whatever name it goes
    assert released.words("CNV") == right.words("CNV")


def test_kvasir_v2():
    assert LEXICONS["kvasir-v2"].concepts == {
        "dyed-lifted-polyps": "dyed lifted polyp",
        "dyed-resection-margins": "dyed resection margin",
        "esophagitis": "esophagitis",
        "normal-cecum": "cecum",
        "normal-pylorus": "pylorus",
        "normal-z-line": "Z-line",
        "polyps": "polyps",
        "ulcerative-colitis": "ulcerative colitis",
    }


@pytest.mark.parametrize(
    ("name", "same"),
    [
        (" Immature_Granulocyte ", "immature granulocyte"),
        ("Z-line", "z line"),
        ("lawn__mower", "lawn mower"),
        ("A", "A"),
        ("a", "a"),
        ("IG", "ig"),
        ("-", "-"),
    ],
)
def test_normalised_names(name, same):
    assert normalise_name(name) == same


@pytest.mark.parametrize(
    ("classes", "expected"),
    [
        (CLASSES, "pbc"),
        (["Basophils", "eosinophils", "ERYTHROBLAST", "ig", "lymphocyte", "monocyte", "neutrophils"], "pbc"),
        (medmnist.CLASSES["bloodmnist"], "pbc"),
        (medmnist.CLASSES["dermamnist"], "ham10000"),
        (medmnist.CLASSES["octmnist"], "oct2017"),
        (["akiec", "bcc", "bkl", "df", "mel", "nv", "vasc"], "ham10000"),
        (["MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC"], "isic2019"),
        (["CNV", "DME", "DRUSEN", "NORMAL"], "oct2017"),
        (["AMD", "CNV", "CSR", "DME", "DR", "DRUSEN", "MH", "NORMAL"], "oct-c8"),
        (["Epidural", "Intraparenchymal", "Intraventricular", "Subarachnoid", "Subdural"], "ich"),
        (["EDH", "IPH", "IVH", "SAH", "SDH"], "ich"),
        (list("ABCDEFGHIJKLMNOPQRSTUVWXYZ"), "emnist"),
        (["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"], "cifar10"),
        (["cat", "dog"], None),  # two of ten could be of anything
        (["0", "1", "2"], None),
        (["benign", "malignant"], None),
        (["basophil", "artefact"], None),
        ([], None),
    ],
)
def test_found_by_class_names(classes, expected):
    lexicon = find_lexicon(classes)
    assert (lexicon and lexicon.name) == expected


@pytest.mark.parametrize("name", LEXICONS)
def test_every_lexicon_is_found_by_its_own_classes(name):
    lexicon = find_lexicon(list(LEXICONS[name].concepts))
    assert lexicon is not None
    assert lexicon.name == name.removesuffix("-released")


def test_classes_with_words_need_no_lexicon():
    assert find_lexicon([*CLASSES, "artefact"]) is None
    assert find_lexicon([*CLASSES, "artefact"], {"artefact"}) is LEXICONS["pbc"]
    assert find_lexicon(["x", "y"], {"x", "y"}) is None
