"""Lexicons: for each known dataset, what its classes are in words and what its pictures are called."""

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
    nouns: tuple[str, ...] = PICTURES  # with an article only where it is not the one that grammar asks for
    leading: tuple[str, ...] = ()  # nouns of the first frame, where they are fewer
    also: Mapping[str, str] = field(default_factory=dict)  # further names that classes go by -> words

    def words(self, name: str) -> str | None:
        """What a class is in words, by its name here or by those words."""
        asked = plain(name)
        spoken = {words: words for words in self.concepts.values()}
        tables = (self.concepts, self.also, spoken)
        return next((words for table in tables for key, words in table.items() if plain(key) == asked), None)


def plain(name: str) -> str:
    """A name without what people vary: case, underscores, hyphens, blanks. Letters by themselves keep their case."""
    words = spaced(name.replace("-", " ")) or name.strip()
    return words if len(words) == 1 else words.casefold()


def spaced(text: str) -> str:
    return " ".join(text.replace("_", " ").split())


def fitting(classes: Sequence[str], given: Collection[str] = ()) -> Lexicon | None:
    """The smallest lexicon with words for every class that is not given any. Its classes must be half there at least:
    the classes 0 and 1 of anything are not handwriting, nor is everything benign or malignant a breast tumour."""
    fit = [
        lexicon
        for lexicon in LEXICONS.values()
        if 2 * known(lexicon, classes) >= len(lexicon.concepts)
        and all(name in given or lexicon.words(name) for name in classes)
    ]
    return min(fit, key=lambda lexicon: len(lexicon.concepts), default=None)


def known(lexicon: Lexicon, classes: Sequence[str]) -> int:
    """How many of the classes it has words for."""
    return sum(lexicon.words(name) is not None for name in classes)


def _themselves(names: str) -> dict[str, str]:
    """Classes whose names are words already."""
    return {name: spaced(name) for name in names.split()}


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
BREAST = _themselves(
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

ALL = (
    Lexicon(
        "pbc",
        BLOOD,
        (*PICTURES, "microscopic image", "microscopic photo"),
        also={f"{words}s": words for words in BLOOD.values()},
    ),
    Lexicon(
        "ham10000",
        LESIONS,
        DERMATOSCOPY,
        also={"actinic keratoses and intraepithelial carcinoma": "actinic keratoses"},
    ),
    Lexicon("oct-c8", RETINA, OCT, OCT[:3]),
    Lexicon("oct-c8-released", RETINA | SWAPPED, OCT, OCT[:3], also={RETINA[k]: SWAPPED[k] for k in SWAPPED}),
    Lexicon("kvasir-v2", ENDOSCOPY, (*PICTURES, "a endoscopic image", "a endoscopic photo")),  # "a" as released
    Lexicon("oct2017", {name: RETINA[name] for name in ("CNV", "DME", "DRUSEN", "NORMAL")}, OCT, OCT[:3]),
    Lexicon("isic2019", ISIC, DERMATOSCOPY),
    Lexicon("ich", HEMORRHAGES, (*PICTURES, "CT scan", "CT image"), also=HEMORRHAGE_CODES),
    Lexicon(
        "breakhis",
        BREAST,
        (*PICTURES, "histopathological image", "histopathological photo"),
        also={"benign": "benign breast tumor", "malignant": "malignant breast tumor"},
    ),
    Lexicon("femnist", CHARACTERS, HANDWRITING),
    Lexicon("emnist", LETTERS, HANDWRITING, also={letter.upper(): words for letter, words in LETTERS.items()}),
    Lexicon("cifar10", _themselves("airplane automobile bird cat deer dog frog horse ship truck")),
    Lexicon("cifar100", _themselves(CIFAR100)),
)
LEXICONS = {lexicon.name: lexicon for lexicon in ALL}
