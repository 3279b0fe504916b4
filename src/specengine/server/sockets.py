"""Where the server listens: TCP or a Unix socket, taken cleanly and left cleanly."""

import errno
import os
import socket
import stat
from pathlib import Path

from specengine.errors import OptionError

MAX_SOCKET_PATH = 107
"""Bytes that a Unix socket address holds."""
BACKLOG = 2048
"""Connections that may wait; those that come while the model loads wait for it."""


def bind_tcp(host: str, port: int) -> socket.socket:
    """A listening TCP socket; port 0 takes a free one.

    It listens at once: two sockets may be bound to one address as long as neither listens, and the
    second server would find out only after loading its model.

    Raises:
        OptionError: the address is in use, ill-formed or not this machine's.
    """
    where = f"{host}:{port}"
    if not host:
        raise OptionError("is empty", where="--host", fix="name an address of this machine")
    bound = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(BACKLOG)
    except (OSError, UnicodeError) as error:
        if bound is not None:
            bound.close()
        fix = "stop the other server or choose another port"
        if not isinstance(error, OSError) or error.errno != errno.EADDRINUSE:
            fix = "choose an address of this machine and a free port"
        raise OptionError(_reason(error), where=where, fix=fix) from error
    return bound


def check_unix(path: Path) -> None:
    """Refuse a socket path that cannot be bound later, before the model is loaded.

    Raises:
        OptionError: a live server listens there, the path holds something else or is too long, or
            its folder is missing.
    """
    where = str(path)
    if len(os.fsencode(where)) > MAX_SOCKET_PATH:
        raise OptionError(
            f"is longer than {MAX_SOCKET_PATH} bytes", where=where, fix="choose a shorter path"
        )
    if not path.parent.is_dir():
        raise OptionError("its folder does not exist", where=where, fix="create the folder")
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise OptionError(_reason(error), where=where, fix="choose another path") from error
    if not stat.S_ISSOCK(mode):
        raise OptionError("exists and is not a socket", where=where, fix="choose another path")
    if _is_live(path):
        raise OptionError(
            "another server listens there", where=where, fix="stop it or choose another path"
        )


def bind_unix(path: Path) -> socket.socket:
    """A listening Unix socket; the file of a dead server is replaced.

    Raises:
        OptionError: see `check_unix`, or the folder cannot be written.
    """
    check_unix(path)
    try:
        path.unlink(missing_ok=True)
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        bound.bind(str(path))
        # Only a socket that listens looks alive to the next server that wants the path.
        bound.listen(BACKLOG)
    except OSError as error:
        raise OptionError(
            _reason(error), where=str(path), fix="choose a folder that can be written"
        ) from error
    return bound


def remove_unix(path: Path, bound_inode: int) -> None:
    """Remove the socket file if it is still the one that was bound."""
    if path.exists() and path.stat().st_ino == bound_inode:
        path.unlink()


def _is_live(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(2.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
        except OSError:
            # A full backlog or a refused permission is a sign of life.
            return True
    return True


def _reason(error: OSError | UnicodeError) -> str:
    if isinstance(error, UnicodeError):
        return "no host name can be spelt so"
    return (error.strerror or str(error)).lower()
