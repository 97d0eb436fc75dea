"""Every change that Crossward makes to Flower's internals, and to its web server: what, why, and whether it took hold.

Each process of Flower has a list of patches. `apply_patches` asserts that what it patches exists, and is what it is
taken for: a package may export a function under the name of the module that the function is in, and an attribute that
is set on a function changes nothing. `assert_in_force` is called when all of flwr is imported that the process will
use, immediately before it starts its work.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

from crossward.hospitals.flower import connections, own_apps, short_ways, site_answers, task_tokens
from crossward.hospitals.flower.fleet_guard import GUARDED_HANDLERS, FleetGuard
from crossward.hospitals.flower.supernode_pace import SuperNodePace

PULL_BACKOFF = 0.05  # seconds until contents that are on their way are asked for again, then doubled; Flower: 1
MAX_PULL_BACKOFF = 0.4  # seconds; Flower: 10
REQUEST_BUFFER = 2**23  # bytes of a request that a server reads ahead of its handlers; uvicorn: 2^16
PULL_MODULE = "flwr.supercore.inflatable.inflatable_utils"  # must not have been imported yet
RUN_SERVERAPP = "flwr.superlink.runtime.run_serverapp"
START_CLIENT = "flwr.supernode.start_client_internal"
SUPERLINK_APP = "flwr.superlink.main"
FLEET_HANDLERS = "flwr.superlink.servicer.fleet.fleet_handlers"
RUNTIME_HANDLERS = "flwr.superlink.servicer.runtime.runtime_handlers"


@dataclass(frozen=True)
class Patch:
    """A name in a module, or in a class of it, that gets another value."""

    module: str
    name: str  # or Class.name
    reason: str
    value: Any
    used_by: str = ""  # module:function, the function of Flower that looks the name up when it runs
    default_of: str = ""  # module:function:argument, the argument of Flower whose default the value must have become

    def owner(self) -> ModuleType | type:
        """What holds the name: a module or a class, and nothing else."""
        module = import_module(self.module)
        assert isinstance(module, ModuleType), f"{self.module} is not a module"
        assert module is sys.modules[self.module]
        *path, name = self.name.split(".")
        owner: Any = module
        for part in path:
            owner = getattr(owner, part)
            assert isinstance(owner, type), f"{part} in {self.module} is not a class"
        assert name in vars(owner), f"{self.module} has no {self.name}: is this another version of Flower?"
        return owner  # type: ignore[no-any-return]

    def apply(self) -> None:
        owner = self.owner()
        value = classmethod(self.value) if isinstance(vars(owner)[self.last_name], classmethod) else self.value
        setattr(owner, self.last_name, value)

    @property
    def last_name(self) -> str:
        return self.name.rpartition(".")[2]

    def assert_in_force(self) -> None:
        """Fail unless the name has its value, where the function looks for it that uses it."""
        current = getattr(self.owner(), self.last_name)
        if isinstance(current, MethodType):
            current = current.__func__
        assert current is self.value, f"{self.module}.{self.name} is not Crossward's: the patch is not in force"
        if self.used_by:
            module, _, function_name = self.used_by.partition(":")
            function = inspect.unwrap(getattr(import_module(module), function_name))
            assert isinstance(function, FunctionType), f"{self.used_by} is not a function"
            used = function.__globals__.get(self.last_name)
            assert self.last_name in _names_in(function.__code__), f"{self.used_by} does not use {self.last_name}"
            assert used is self.value, f"{self.used_by} does not see Crossward's {self.name}"
        if self.default_of:
            module, function_name, argument = self.default_of.split(":")
            parameters = inspect.signature(getattr(import_module(module), function_name)).parameters
            assert parameters[argument].default == self.value, f"{self.default_of} does not have Crossward's value"


def apply_patches(*lists: Callable[[], Sequence[Patch]]) -> Callable[[], None]:
    """Apply lists of patches, each made when the ones before it are applied. Returns the assertion that all are in
    force, to be called when everything is imported that the process will use."""
    applied: list[Patch] = []
    for make in lists:
        for patch in make():
            patch.apply()
            applied.append(patch)

    def assert_in_force() -> None:
        for patch in applied:
            patch.assert_in_force()

    return assert_in_force


def _names_in(code: Any) -> set[str]:
    """The global names that a function and the functions in it use."""
    inner = [constant for constant in code.co_consts if hasattr(constant, "co_names")]
    return {*code.co_names}.union(*(_names_in(each) for each in inner))


# the patches of each process ------------------------------------------------------------------------------------------
def pull_waits() -> list[Patch]:
    """Of every process that pulls contents. Functions take them as their defaults, so this must come first."""
    assert PULL_MODULE not in sys.modules, "too late: flwr has its waits already"
    from flwr.supercore import constant

    tries = int(constant.PULL_MAX_TIME / MAX_PULL_BACKOFF)
    return [
        Patch(
            "flwr.supercore.constant",
            name,
            "contents that are on their way are asked for sooner, and for as long",
            value,
            default_of=f"{PULL_MODULE}:pull_objects:{argument}",
        )
        for name, value, argument in (
            ("PULL_INITIAL_BACKOFF", PULL_BACKOFF, "initial_backoff"),
            ("PULL_BACKOFF_CAP", MAX_PULL_BACKOFF, "backoff_cap"),
            ("PULL_MAX_TRIES_PER_OBJECT", tries, "max_tries_per_object"),
        )
    ]


def request_buffer() -> list[Patch]:
    """Of every process that serves: each piece of a request passes a dozen layers of middleware."""
    return [
        Patch(
            "uvicorn.protocols.http.httptools_impl",
            "HIGH_WATER_LIMIT",
            "requests are read in few large pieces",
            REQUEST_BUFFER,
        )
    ]


def clients() -> list[Patch]:
    """Of every process that sends requests to another one of Flower's."""
    return [
        Patch(
            "flwr.supercore.protobuf.client",
            "ProtobufClient.from_server_address",
            "Control and Runtime are reached by a Unix socket of this user alone, the Fleet with a client certificate; "
            "no redirections are followed",
            connections.connect,
        )
    ]


def executor() -> list[Patch]:
    """Of the process that starts an app process for each message or run."""
    return [
        Patch(
            "flwr.supercore.superexec.executor.subprocess_executor",
            "subprocess",
            "the token of a task is in the environment of its process: every user can read command lines",
            task_tokens.executor_subprocess,
        )
    ]


def superlink(guard: FleetGuard) -> list[Patch]:
    """Of the coordinator's SuperLink."""
    own = "a site receives and answers its own messages, and no others"
    return [
        Patch(
            "flwr.superlink.config_loader",
            "ObjectStoreFactory",
            "contents of messages do not pass through SQLite, which is half of the work for 44 MB; those that are lost "
            "in a crash are asked for again. Nodes and runs stay on disk",
            own_apps.create_in_memory_store,
            "flwr.superlink.config_loader:get_objectstore_linkstate_factories",
        ),
        Patch(
            SUPERLINK_APP,
            "_get_middleware",
            "a request does not enter layers that would hand it on as it is",
            short_ways.with_short_ways(import_module(SUPERLINK_APP)._get_middleware),
            f"{SUPERLINK_APP}:create_app",
        ),
        *(
            Patch(FLEET_HANDLERS, name, own, guard.guarded(name, getattr(import_module(FLEET_HANDLERS), name)))
            for name in GUARDED_HANDLERS
        ),
        Patch(
            RUNTIME_HANDLERS,
            "pull_messages",
            "a run gets replies whose contents have all come: one that never comes whole holds up no other. It waits "
            "for one, instead of asking ten times a second",
            guard.arrived(import_module(RUNTIME_HANDLERS).pull_messages),
        ),
        Patch(
            RUNTIME_HANDLERS,
            "push_messages",
            "sites that wait for a message are told that there is one",
            guard.announced(import_module(RUNTIME_HANDLERS).push_messages),
        ),
        Patch(
            RUNTIME_HANDLERS,
            "push_object",
            "the same, when its contents have come",
            guard.stored(import_module(RUNTIME_HANDLERS).push_object),
        ),
    ]


def server_app() -> list[Patch]:
    """Of the process of a ServerApp: nothing of a bundle is unpacked, read or run."""
    user = "flwr.superlink.cli.flwr_serverapp:run_serverapp"
    return [
        Patch(RUN_SERVERAPP, "install_from_fab", "refuses every bundle but our own", own_apps.require_own_bundle, user),
        Patch(RUN_SERVERAPP, "get_project_config", "the bundle is not on disk", own_apps.project_config, user),
        Patch(RUN_SERVERAPP, "get_fused_config_from_dir", "the same", own_apps.run_settings, user),
        Patch(RUN_SERVERAPP, "run_", "the app that is installed is run", own_apps.run_server_app, user),
    ]


def supernode() -> list[Patch]:
    """Of a site's SuperNode."""
    pace = SuperNodePace()
    return [
        Patch(
            START_CLIENT,
            "time",  # of which the module uses nothing but `sleep`
            "Flower sleeps three seconds when there is no message; here the SuperLink lets the question wait",
            SimpleNamespace(sleep=pace.sleep),
            f"{START_CLIENT}:start_client_internal",
        ),
        Patch(
            START_CLIENT,
            "get_fused_config_from_fab",
            "a bundle from the coordinator is not unpacked, not even in memory",
            own_apps.ignore_settings_of_bundle,
            f"{START_CLIENT}:_pull_and_store_message",
        ),
        Patch(
            START_CLIENT,
            "_push_messages",
            "messages are handed to the site's worker here, not by a process for each that fetches them",
            site_answers.answering(import_module(START_CLIENT)._push_messages, pace.worked),
            f"{START_CLIENT}:start_client_internal",
        ),
        Patch(
            "flwr.supernode.cli.flower_supernode",
            "_start_supernode_http_api",
            "no other process needs a site's messages, so that they are served to nobody",
            site_answers.serve_nothing,
            "flwr.supernode.cli.flower_supernode:flower_supernode",
        ),
    ]
