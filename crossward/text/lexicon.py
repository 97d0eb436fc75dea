"""Lexicons: the words for the classes of known datasets, and the nouns for their pictures."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from string import ascii_lowercase, ascii_uppercase, digits

PICTURES = ("image", "photo")
OCT = (*PICTURES, "OCT scan", "OCT image", "OCT photo")
DERMATOSCOPY = (*PICTURES, "dermatoscopic image", "dermatoscopic photo")
HANDWRITING = (*PICTURES, "handwritten image", "handwritten photo")


@dataclass(frozen=True)
class Lexicon:
    name: str
    concepts: Mapping[str, str]  # class -> words, in the dataset's usual order of labels
    nouns: tuple[str, ...] = PICTURES  # with an article only where it is not the grammatical one
    leading: tuple[str, ...] = ()  # nouns of the first frame, where they are fewer
    aliases: Mapping[str, str] = field(default_factory=dict)  # other names of classes -> words

    def words(self, name: str) -> str | None:
        """The words for a class, which may be given by its name, an alias, or the words themselves."""
        wanted = normalise_name(name)
        themselves = {words: words for words in self.concepts.values()}
        for table in (self.concepts, self.aliases, themselves):
            for key, words in table.items():
                if normalise_name(key) == wanted:
                    return words
        return None


def normalise_name(name: str) -> str:
    """Without case, underscores, hyphens and extra spaces; single letters keep their case."""
    words = normalise_spaces(name.replace("-", " ")) or name.strip()
    return words if len(words) == 1 else words.casefold()


def normalise_spaces(text: str) -> str:
    """Single spaces in place of underscores and runs of spaces."""
    return " ".join(text.replace("_", " ").split())


def find_lexicon(classes: Sequence[str], with_words: Collection[str] = ()) -> Lexicon | None:
    """The smallest lexicon with words for every class that has none yet.

    At least half of its own classes must be there: the classes 0 and 1 of anything are not handwriting, nor is
    everything benign or malignant a breast tumour.
    """
    candidates = [
        lexicon
        for lexicon in LEXICONS.values()
        if 2 * count_known(lexicon, classes) >= len(lexicon.concepts)
        and all(name in with_words or lexicon.words(name) for name in classes)
    ]
    return min(candidates, key=lambda lexicon: len(lexicon.concepts), default=None)


def count_known(lexicon: Lexicon, classes: Sequence[str]) -> int:
    """How many of the classes the lexicon has words for."""
    return sum(lexicon.words(name) is not None for name in classes)


def _named_by_words(names: str) -> dict[str, str]:
    """Concepts of classes whose names are words already."""
    return {name: normalise_spaces(name) for name in names.split()}


BLOOD = {
    "basophil": "basophil",
    "eosinophil": "eosinophil",
    "erythroblast": "erythroblast",
    "ig": "immature granulocyte",
    "lymphocyte": "lymphocyte",
    "monocyte": "monocyte",
    "neutrophil": "neutrophil",
    "platelet": "platelet",
}
LESIONS = {
    "akiec": "actinic keratoses",
    "bcc": "basal cell carcinoma",
    "bkl": "benign keratosis-like lesions",
    "df": "dermatofibroma",
    "mel": "melanoma",
    "nv": "melanocytic nevi",
    "vasc": "vascular lesions",
}
RETINA = {
    "AMD": "Age-related macular degeneration",
    "CNV": "Choroidal neovascularization",
    "CSR": "Central serous retinopathy",
    "DME": "Diabetic macular edema",
    "DR": "Diabetic retinopathy",
    "DRUSEN": "Choroidal drusen",
    "MH": "Macular hole",
    "NORMAL": "Normal retina",
}
SWAPPED = {"DR": "Macular hole", "MH": "Diabetic retinopathy"}  # as the released code of FedBM has them
ENDOSCOPY = {
    "dyed-lifted-polyps": "dyed lifted polyp",
    "dyed-resection-margins": "dyed resection margin",
    "esophagitis": "esophagitis",
    "normal-cecum": "cecum",
    "normal-pylorus": "pylorus",
    "normal-z-line": "Z-line",
    "polyps": "polyps",
    "ulcerative-colitis": "ulcerative colitis",
}
ISIC = {
    "MEL": "melanoma",
    "NV": "melanocytic nevus",
    "BCC": "basal cell carcinoma",
    "AK": "actinic keratosis",
    "BKL": "benign keratosis",
    "DF": "dermatofibroma",
    "VASC": "vascular lesion",
    "SCC": "squamous cell carcinoma",
}
HEMORRHAGES = {
    "epidural": "epidural hemorrhage",
    "intraparenchymal": "intraparenchymal hemorrhage",
    "intraventricular": "intraventricular hemorrhage",
    "subarachnoid": "subarachnoid hemorrhage",
    "subdural": "subdural hemorrhage",
}
HEMORRHAGE_CODES = dict(zip(("EDH", "IPH", "IVH", "SAH", "SDH"), HEMORRHAGES.values(), strict=True))
BREAST = _named_by_words(
    "adenosis fibroadenoma phyllodes_tumor tubular_adenoma "
    "ductal_carcinoma lobular_carcinoma mucinous_carcinoma papillary_carcinoma"
)
CHARACTERS = {
    **{n: f"digit {n}" for n in digits},
    **{letter: f"uppercase letter {letter}" for letter in ascii_uppercase},
    **{letter: f"lowercase letter {letter}" for letter in ascii_lowercase},
}
LETTERS = {letter: f"letter {letter}" for letter in ascii_lowercase}
CIFAR100 = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale willow_tree
wolf woman worm
"""

_ALL = (
    Lexicon(
        "pbc",
        BLOOD,
        (*PICTURES, "microscopic image", "microscopic photo"),
        aliases={f"{words}s": words for words in BLOOD.values()},
    ),
    Lexicon(
        "ham10000",
        LESIONS,
        DERMATOSCOPY,
        aliases={"actinic keratoses and intraepithelial carcinoma": "actinic keratoses"},
    ),
    Lexicon("oct-c8", RETINA, OCT, OCT[:3]),
    Lexicon("oct-c8-released", RETINA | SWAPPED, OCT, OCT[:3], aliases={RETINA[k]: SWAPPED[k] for k in SWAPPED}),
    Lexicon("kvasir-v2", ENDOSCOPY, (*PICTURES, "a endoscopic image", "a endoscopic photo")),  # "a" as released
    Lexicon("oct2017", {name: RETINA[name] for name in ("CNV", "DME", "DRUSEN", "NORMAL")}, OCT, OCT[:3]),
    Lexicon("isic2019", ISIC, DERMATOSCOPY),
    Lexicon("ich", HEMORRHAGES, (*PICTURES, "CT scan", "CT image"), aliases=HEMORRHAGE_CODES),
    Lexicon(
        "breakhis",
        BREAST,
        (*PICTURES, "histopathological image", "histopathological photo"),
        aliases={"benign": "benign breast tumor", "malignant": "malignant breast tumor"},
    ),
    Lexicon("femnist", CHARACTERS, HANDWRITING),
    Lexicon("emnist", LETTERS, HANDWRITING, aliases={letter.upper(): words for letter, words in LETTERS.items()}),
    Lexicon("cifar10", _named_by_words("airplane automobile bird cat deer dog frog horse ship truck")),
    Lexicon("cifar100", _named_by_words(CIFAR100)),
)
LEXICONS = {lexicon.name: lexicon for lexicon in _ALL}
