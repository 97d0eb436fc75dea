"""The catalogue of methods. Nothing is imported before it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crossward.names import import_from_catalogue

if TYPE_CHECKING:
    from crossward.core.method import Method

METHODS = {
    "fedavg": ("crossward.methods.fedavg", "FedAvg"),
    "fedprox": ("crossward.methods.fedprox", "FedProx"),
    "scaffold": ("crossward.methods.scaffold", "Scaffold"),
    "feddyn": ("crossward.methods.feddyn", "FedDyn"),
    "feddc": ("crossward.methods.feddc", "FedDC"),
    "moon": ("crossward.methods.moon", "Moon"),
    "fedproc": ("crossward.methods.fedproc", "FedProc"),
    "fedproto": ("crossward.methods.fedproto", "FedProto"),
    "fednh": ("crossward.methods.fednh", "FedNH"),
    "fedetf": ("crossward.methods.fedetf", "FedETF"),
    "random-frozen": ("crossward.methods.random_frozen", "RandomFrozen"),
    "fedbabu": ("crossward.methods.fedbabu", "FedBABU"),
    "fedrep": ("crossward.methods.fedrep", "FedRep"),
    "fedrod": ("crossward.methods.fedrod", "FedRoD"),
    "fedrs": ("crossward.methods.fedrs", "FedRS"),
    "fedlc": ("crossward.methods.fedlc", "FedLC"),
    "creff": ("crossward.methods.creff", "CReFF"),
    "balancefl": ("crossward.methods.balancefl", "BalanceFL"),
    "fedcd": ("crossward.methods.fedcd", "FedCD"),
    "fedcb": ("crossward.methods.fedcb", "FedCB"),
    "fedbm": ("crossward.methods.fedbm.method", "FedBM"),
    "fednpr": ("crossward.methods.fednpr", "FedNPR"),
    "fednpr-per": ("crossward.methods.fednpr_per", "FedNPRPer"),
    "ditto": ("crossward.methods.ditto", "Ditto"),
    "apfl": ("crossward.methods.apfl", "APFL"),
    "lg-fedavg": ("crossward.methods.lg_fedavg", "LGFedAvg"),
    "fedmd": ("crossward.methods.fedmd", "FedMD"),
    "feddf": ("crossward.methods.feddf", "FedDF"),
    "pfeddf": ("crossward.methods.pfeddf", "PFedDF"),
    "ds-pfl": ("crossward.methods.ds_pfl", "DSpFL"),
    "kt-pfl": ("crossward.methods.kt_pfl", "KTpFL"),
    "fedsm": ("crossward.methods.fedsm", "FedSM"),
    "lc-fed": ("crossward.methods.lc_fed.method", "LCFed"),
    "mh-pflgb": ("crossward.methods.mh_pflgb.method", "MHpFLGB"),
    "local": ("crossward.methods.local", "Local"),
    "central": ("crossward.methods.central", "Central"),
}


def method_class(name: str) -> type[Method]:
    cls: type[Method] = import_from_catalogue("method", name, METHODS)
    return cls
