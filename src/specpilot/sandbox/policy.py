"""What a server under test or an agent may see and touch, as one bubblewrap command line.

Pure: nothing is started here. A confined process gets its own user, process, IPC, host-name and
(unless asked otherwise) network namespace, an empty environment, private /tmp and /dev/shm, no
keyring of the kernel, and the paths named in its policy. Everything else of the file system is
absent, so the journal, the records and the sealed requests are hidden by not being bound; a bind
that would bring one of them in is refused. Nothing but the writable paths, /tmp and /dev/shm can be
written to.
"""

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from specpilot.core.errors import Refused, SpecPilotError
from specpilot.sandbox import keyrings

SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
SYSTEM_FILES = (
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/alternatives",
    "/etc/localtime",
    "/etc/OpenCL",
    "/etc/vulkan",
)
NETWORK_FILES = ("/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/ssl", "/etc/pki")
HOME = "/tmp/home"
"""Home of a confined process, on its private /tmp."""


class Role(StrEnum):
    """Who is confined."""

    SERVER = "server"
    AGENT = "agent"


@dataclass(frozen=True, slots=True)
class Bind:
    """A path of the host and where it appears inside; the same path when `target` is None."""

    source: Path
    target: Path | None = None

    @property
    def inside(self) -> Path:
        """The path that the confined process uses."""
        return self.source if self.target is None else self.target


@dataclass(frozen=True, slots=True)
class Policy:
    """Everything one process may see.

    Attributes:
        read_only: paths that may be read.
        writable: paths that may be written; for a server only its socket folder.
        device_nodes: nodes under /dev, such as those of one leased GPU.
        environment: the whole environment; None keeps that of the calling process, which then has
            to be clean already.
        working_folder: where the process starts, as seen inside.
        network: share the host's network; only an agent that must reach a model provider.
        shm_bytes: size of /dev/shm.
        tmp_bytes: size of /tmp, which lies in memory.
        hidden: paths that no bind may expose, such as the journal.
    """

    role: Role
    read_only: tuple[Bind, ...]
    writable: tuple[Bind, ...]
    environment: Mapping[str, str] | None
    working_folder: Path
    device_nodes: tuple[Path, ...] = ()
    network: bool = False
    shm_bytes: int = 4 << 30
    tmp_bytes: int = 4 << 30
    hidden: tuple[Path, ...] = field(default=())


def check_policy(policy: Policy) -> None:
    """Refuse a policy that exposes a hidden path or names one that does not exist.

    Raises:
        Refused: a bind would show a hidden path, or a server asks for a network.
        SpecPilotError: a path is missing.
    """
    if policy.network and policy.role is Role.SERVER:
        raise Refused(
            "a server under test never gets a network",
            where="sandbox policy",
            fix="leave `network` off",
        )
    hidden = [path.resolve() for path in policy.hidden]
    for bind in (*policy.read_only, *policy.writable):
        if not bind.source.exists():
            raise _missing(bind.source)
        source = bind.source.resolve()
        for secret in hidden:
            if secret == source or source in secret.parents or secret in source.parents:
                raise Refused(
                    f"binding {bind.source} would show {secret}",
                    where="sandbox policy",
                    fix="keep what a confined process needs apart from the run's own files",
                )
    for node in policy.device_nodes:
        if not node.exists():
            raise _missing(node)


def bwrap_arguments(
    policy: Policy,
    command: Sequence[str],
    *,
    program: str = "bwrap",
    identity: tuple[int, int] | None = None,
) -> tuple[str, ...]:
    """The command line that runs `command` under a policy (check it first).

    Args:
        identity: uid and gid of an account that the command gets once its view is built; that
            takes root, who alone reaches everything that is bound. None keeps the caller's.
    """
    arguments = [sys.executable, "-I", "-S", keyrings.__file__]
    arguments += [program, "--die-with-parent", "--cap-drop", "ALL"]
    if policy.environment is not None:
        arguments.append("--clearenv")
    if identity is None:
        arguments.append("--unshare-user")
    else:
        arguments += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    for kind in ("pid", "ipc", "uts"):
        arguments.append(f"--unshare-{kind}")
    if not policy.network:
        arguments.append("--unshare-net")
    arguments += ["--hostname", "specpilot", "--proc", "/proc", "--dev", "/dev"]
    arguments += ["--perms", "1777", "--size", str(policy.shm_bytes), "--tmpfs", "/dev/shm"]
    arguments += ["--perms", "1777", "--size", str(policy.tmp_bytes), "--tmpfs", "/tmp"]
    arguments += ["--perms", "1777", "--dir", HOME]
    files = SYSTEM_FILES + (NETWORK_FILES if policy.network else ())
    for path in (*SYSTEM_FOLDERS, *files):
        # A host need not have each of them.
        arguments += ["--ro-bind-try", path, path]
    for node in policy.device_nodes:
        arguments += ["--dev-bind", str(node), str(node)]
    for folder in _parents((*policy.read_only, *policy.writable)):
        # Left to itself, bubblewrap makes them for its own user alone.
        arguments += ["--perms", "0755", "--dir", str(folder)]
    for option, binds in (("--ro-bind", policy.read_only), ("--bind", policy.writable)):
        # Outer folders first: a later bind covers what an earlier one put at the same place.
        for bind in sorted(binds, key=lambda entry: len(entry.inside.parts)):
            arguments += [option, str(bind.source), str(bind.inside)]
    for name, value in sorted((policy.environment or {}).items()):
        arguments += ["--setenv", name, value]
    # Both lie in memory, and nothing else would bound what is written to them.
    arguments += ["--remount-ro", "/dev", "--remount-ro", "/"]
    if identity is not None:
        uid, gid = map(str, identity)
        become = ("setpriv", "--reuid", uid, "--regid", gid, "--clear-groups", "--inh-caps=-all")
        command = (*become, "--", *command)
    return (*arguments, "--chdir", str(policy.working_folder), "--", *command)


def _parents(binds: Sequence[Bind]) -> list[Path]:
    """Folders that lead to binds, outermost first, below none of the system's own."""
    found = {parent for bind in binds for parent in bind.inside.parents}
    system = [Path(folder) for folder in SYSTEM_FOLDERS]
    own = [p for p in found if not any(p.is_relative_to(folder) for folder in system)]
    return sorted(own, key=lambda path: (len(path.parts), path))[1:]


def package_binds() -> tuple[Bind, ...]:
    """Both packages of this distribution, where they are installed outside the environment."""
    names = ("specpilot", "specengine")
    specs = [importlib.util.find_spec(name) for name in names]
    folders = [Path(spec.origin).parent for spec in specs if spec is not None and spec.origin]
    prefix = Path(sys.prefix)
    return tuple(Bind(folder) for folder in folders if not folder.is_relative_to(prefix))


def interpreter_binds() -> tuple[Bind, ...]:
    """This Python: its environment, and the installation that it was made from."""
    prefixes = {Path(sys.prefix), Path(sys.base_prefix), Path(sys.base_prefix).resolve()}
    outside = [path for path in sorted(prefixes) if not path.is_relative_to("/usr")]
    return tuple(Bind(path) for path in outside)


def without_prompts(state: Path) -> tuple[Bind, ...]:
    """Covers the prompts that ship with the package: part of them is sealed.

    Args:
        state: a folder of the confined process's own; an empty one is made in it.
    """
    return _covered("specpilot.workload", "prompts", state / "no-prompts")


def without_judge(state: Path) -> tuple[Bind, ...]:
    """Covers the judge's whole package, prompts included: a server needs none of it.

    Args:
        state: a folder of the judge's own; an empty one is made in it.
    """
    return _covered("specpilot", "", state / "no-judge")


def _covered(package: str, part: str, empty: Path) -> tuple[Bind, ...]:
    spec = importlib.util.find_spec(package)
    empty.mkdir(parents=True, exist_ok=True)
    if spec is None or spec.origin is None:
        return ()
    folder = Path(spec.origin).parent / part
    # The same folder may be bound under its resolved name, when the environment is a link.
    return tuple(Bind(empty, place) for place in sorted({folder, folder.resolve()}))


def _missing(path: Path) -> SpecPilotError:
    return SpecPilotError("does not exist", where=str(path), fix="check the path in the deployment")
