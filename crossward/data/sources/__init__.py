"""The sources of images, by the names that data.source knows them by. A source is one module: the settings of its
section [data], its reader and, as the first line of its docstring, what it is. Nothing is imported before it is used.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from crossward.names import import_from_catalogue, module_source

if TYPE_CHECKING:
    from crossward.data.sources.settings import SourceSettings

SOURCES: dict[str, tuple[str, str]] = {  # name -> module, and the class of its settings
    "phantom": ("crossward.data.sources.phantom.source", "PhantomSettings"),
    "folder": ("crossward.data.sources.folder", "FolderSettings"),
    "table": ("crossward.data.sources.table", "TableSettings"),
    "dicom": ("crossward.data.sources.dicom", "DicomSettings"),
    "nifti": ("crossward.data.sources.nifti", "NiftiSettings"),
    "npz": ("crossward.data.sources.npz", "NpzSettings"),
    "medmnist": ("crossward.data.sources.medmnist", "MedMnistSettings"),
    "pbc": ("crossward.data.sources.pbc", "PbcSettings"),
    "ham10000": ("crossward.data.sources.ham10000", "Ham10000Settings"),
    "isic2019": ("crossward.data.sources.isic2019", "Isic2019Settings"),
    "fed-isic2019": ("crossward.data.sources.fed_isic", "FedIsicSettings"),
    "polypgen": ("crossward.data.sources.polyps", "PolypSettings"),
    "kvasir-seg": ("crossward.data.sources.polyps", "PolypSettings"),
    "cvc-clinicdb": ("crossward.data.sources.polyps", "PolypSettings"),
    "etis": ("crossward.data.sources.polyps", "PolypSettings"),
    "cvc-colondb": ("crossward.data.sources.polyps", "PolypSettings"),
    "polyps": ("crossward.data.sources.polyp_sets", "PolypSetsSettings"),
    "breakhis": ("crossward.data.sources.breakhis", "BreaKHisSettings"),
    "oct2017": ("crossward.data.sources.oct2017", "Oct2017Settings"),
    "oct-c8": ("crossward.data.sources.oct_c8", "OctC8Settings"),
    "kvasir-v2": ("crossward.data.sources.kvasir_v2", "KvasirV2Settings"),
    "rsna-ich": ("crossward.data.sources.rsna_ich", "RsnaIchSettings"),
    "cifar10": ("crossward.data.sources.cifar", "CifarSettings"),
    "cifar100": ("crossward.data.sources.cifar", "CifarSettings"),
    "mnist": ("crossward.data.sources.idx", "IdxSettings"),
    "fashion-mnist": ("crossward.data.sources.idx", "IdxSettings"),
    "emnist-letters": ("crossward.data.sources.idx", "IdxSettings"),
    "emnist-balanced": ("crossward.data.sources.idx", "IdxSettings"),
    "emnist-byclass": ("crossward.data.sources.idx", "IdxSettings"),
    "emnist-bymerge": ("crossward.data.sources.idx", "IdxSettings"),
    "emnist-digits": ("crossward.data.sources.idx", "IdxSettings"),
    "emnist-mnist": ("crossward.data.sources.idx", "IdxSettings"),
    "femnist": ("crossward.data.sources.femnist", "FemnistSettings"),
    "hospitals": ("crossward.data.sources.hospitals", "HospitalsSettings"),
}


def settings_class(name: str) -> type[SourceSettings]:
    """The class of the settings of a source, imported."""
    source_class: type[SourceSettings] = import_from_catalogue("source", name, SOURCES)
    return source_class


def setting_names(name: str) -> list[str]:
    """The keys that [data] may hold with this source; of an unknown source, those that all sources have."""
    from crossward.data.sources.settings import SourceSettings

    return list((settings_class(name) if name in SOURCES else SourceSettings).model_fields)


def names_by_module() -> list[list[str]]:
    """The names of the sources, those of one module together."""
    names: dict[str, list[str]] = {}
    for name, (module, _) in SOURCES.items():
        names.setdefault(module, []).append(name)
    return list(names.values())


def describe(name: str) -> str:
    """What a source is in one line. Its module is read, not imported: importing torch takes seconds."""
    module, _ = SOURCES[name]
    docstring = ast.get_docstring(ast.parse(module_source(module))) or ""
    return docstring.partition("\n")[0]
